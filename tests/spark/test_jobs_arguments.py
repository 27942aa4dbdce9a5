"""The jobs' arguments: what they become, and that a mistake names its argument."""

from datetime import UTC, date, datetime
from typing import Any

import pytest
from sluice_jobs.arguments import parse, source_options
from sluice_jobs.main import main

TODAY = date(2026, 3, 1)
QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/main"
LAND = {
    "--queue-url": QUEUE,
    "--staging": "/s/",
    "--checkpoint": "s3://b/c",
    "--tables": "/t/",
    "--table-format": "parquet",
    "--quarantine": "/q",
}
STATISTICS = {"--tables": "/t", "--table-format": "parquet", "--day": "yesterday", "--output": "/o"}
REPLAY = {
    "--tables": "/t",
    "--queue-url": QUEUE,
    "--exchange": "e",
    "--from": "2026-01-01",
    "--to": "2026-01-02T00:00:00Z",
}


def parsed(job: str, arguments: dict[str, str]) -> Any:
    return parse([job, *[each for pair in arguments.items() for each in pair if each]], today=TODAY)


def test_land_has_the_sources_options_by_their_names() -> None:
    given = parsed("land", LAND | {"--max-messages": "500", "--max-connections": "9", "--region": "eu-west-1"})
    assert source_options(given) == {
        "queueUrl": QUEUE,
        "stagingLocation": "/s",
        "region": "eu-west-1",
        "maxMessagesPerTrigger": "500",
        "maxConnections": "9",
    }
    assert (given.tables, given.trigger_seconds, given.late_days, given.drain) == ("/t", 30.0, 3, False)


def test_columns_of_attributes_are_names_with_types() -> None:
    given = parsed("land", LAND | {"--columns": "priority:bigint, user-id:string", "--envelope": "sns,eventbridge"})
    assert given.columns == {"priority": "bigint", "user-id": "string"}
    assert source_options(given)["envelope"] == "sns,eventbridge"
    assert (parsed("land", LAND).columns, "envelope" in source_options(parsed("land", LAND))) == ({}, False)


@pytest.mark.parametrize(
    ("argument", "value", "why"),
    [
        ("--columns", "priority", "is not name:type"),
        ("--columns", "priority:text", "is not name:type with a type of string, boolean"),
        ("--columns", "a b:int", "is not name:type"),
        ("--columns", "Body:string", "column Body exists already"),
        ("--columns", "a:int,A:int", "column A exists already"),
        ("--columns", "late:boolean", "column late exists already"),
        ("--columns", "envelope:string", "column envelope exists already"),
        ("--envelope", "letter", "is none of none, sns"),
    ],
)
def test_a_column_or_an_envelope_that_cant_be_is_named(
    capsys: pytest.CaptureFixture[str], argument: str, value: str, why: str
) -> None:
    with pytest.raises(SystemExit):
        parsed("land", LAND | {argument: value})
    said = capsys.readouterr().err
    assert f"argument {argument}:" in said
    assert why in said


def test_yesterday_is_the_day_before() -> None:
    assert parsed("statistics", STATISTICS).day == date(2026, 2, 28)
    assert parsed("statistics", STATISTICS | {"--day": "2026-02-03"}).day == date(2026, 2, 3)


def test_a_time_without_a_zone_is_of_utc() -> None:
    given = parsed("replay", REPLAY | {"--to": "2026-01-02T01:00:00+02:00"})
    assert (given.start, given.end) == (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 23, tzinfo=UTC))


def test_iceberg_wants_a_namespace() -> None:
    given = parsed("compact", {"--tables": "glue.sluice", "--table-format": "iceberg", "--days": "3"})
    assert (given.tables, given.days, given.target_mb) == ("glue.sluice", 3, 128)


@pytest.mark.parametrize(
    ("job", "given", "named"),
    [
        pytest.param("land", LAND | {"--queue-url": "main"}, "--queue-url"),
        pytest.param("land", LAND | {"--queue-url": f"{QUEUE},{QUEUE}"}, "--queue-url"),
        pytest.param("land", LAND | {"--staging": "here"}, "--staging"),
        pytest.param("land", LAND | {"--checkpoint": "gs://b/c"}, "--checkpoint"),
        pytest.param("land", LAND | {"--tables": "glue.sluice"}, "--tables"),
        pytest.param("land", LAND | {"--table-format": "iceberg"}, "--tables"),
        pytest.param("land", LAND | {"--table-format": "orc"}, "--table-format"),
        pytest.param("land", LAND | {"--quarantine": "/a`b"}, "--quarantine"),
        pytest.param("land", LAND | {"--trigger-seconds": "soon"}, "--trigger-seconds"),
        pytest.param("land", LAND | {"--max-messages": "0"}, "--max-messages"),
        pytest.param("land", LAND | {"--late-days": "-1"}, "--late-days"),
        pytest.param("statistics", STATISTICS | {"--day": "today"}, "--day"),
        pytest.param("compact", {"--tables": "/t", "--table-format": "delta", "--target-mb": "big"}, "--target-mb"),
        pytest.param("replay", REPLAY | {"--from": "2026-01-03"}, "--to"),
        pytest.param("replay", REPLAY | {"--from": "then"}, "--from"),
        pytest.param("replay", REPLAY | {"--staging": "/s"}, "--staging"),
        pytest.param("replay", REPLAY | {"--exchange": "x" * 128}, "--exchange"),
        pytest.param("replay", REPLAY | {"--queue-url": "ingress"}, "--queue-url"),
        pytest.param("replay", REPLAY | {"--rate": "1.5"}, "--rate"),
    ],
)
def test_a_mistake_names_its_argument_and_exits_with_2(
    job: str, given: dict[str, str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(job, given)
    assert ended.value.code == 2
    assert f"argument {named}" in capsys.readouterr().err


@pytest.mark.parametrize("missing", LAND)
def test_what_is_missing_is_named(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("land", {name: value for name, value in LAND.items() if name != missing})
    assert ended.value.code == 2
    assert missing in capsys.readouterr().err


def test_the_program_needs_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sail"])
    assert ended.value.code == 2
    assert "sail" in capsys.readouterr().err
