import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def options(sqs: Any, tmp_path: Path) -> Mapping[str, str]:
    place = {"stagingLocation": str(tmp_path / "staging"), "waitTimeSeconds": "1"}
    return {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, **place}


@pytest.fixture
def table(spark: Any) -> Iterator[str]:
    yield "sqs_table"
    spark.sql("DROP TABLE IF EXISTS sqs_table")
    spark.sql("DROP VIEW IF EXISTS sqs_view")


@pytest.fixture
def _inserts_columns(spark: Any) -> None:
    if spark.version.startswith("4.0."):
        pytest.skip("Spark 4.0 inserts whole rows only")


def listed(options: Mapping[str, str], **more: str) -> str:
    return "(" + ", ".join(f"'{name}' '{value}'" for name, value in {**options, **more}.items()) + ")"


def with_options(options: Mapping[str, str]) -> str:
    return "WITH (" + ", ".join(f"'{name}' = '{value}'" for name, value in options.items()) + ")"


def test_a_temporary_view_is_selected_from(spark: Any, sqs: Any, options: Mapping[str, str], table: str) -> None:
    """With an envelope it has its columns."""
    sqs.queues["q"].fill(
        (f'{{"Type": "Notification", "Message": "{number:03d}"}}' for number in range(120)), time.time()
    )
    spark.sql(f"CREATE TEMPORARY VIEW sqs_view USING sqs OPTIONS {listed(options, envelope='sns')}")
    counted = "count(*) n, min(body) low, max(receive_count) times, count(bad_reason) bad"
    assert [tuple(row) for row in spark.sql(f"SELECT {counted} FROM sqs_view").collect()] == [(120, "000", 1, 0)]


@pytest.mark.usefixtures("_inserts_columns")
def test_rows_are_inserted_into_a_temporary_view(spark: Any, sqs: Any, options: Mapping[str, str], table: str) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW sqs_view USING sqs OPTIONS {listed(options, failOnError='false')}")
    spark.sql("INSERT INTO sqs_view (body, message_group_id) VALUES ('a', 'g'), ('b', NULL)")
    assert sqs.queues["q"].counts(time.time())["ApproximateNumberOfMessages"] == 2
    assert sorted(row.body for row in spark.sql("SELECT body FROM sqs_view").collect()) == ["a", "b"]


@pytest.mark.usefixtures("_inserts_columns")
def test_a_table_is_selected_from_and_inserted_into_if_its_options_are_given_again(
    spark: Any, sqs: Any, options: Mapping[str, str], table: str
) -> None:
    spark.sql(f"CREATE TABLE {table} USING sqs OPTIONS {listed(options)}")
    said = with_options(options)
    spark.sql(f"INSERT INTO {table} {said} (body) VALUES ('a')")
    assert [row.body for row in spark.sql(f"SELECT body FROM {table} {said}").collect()] == ["a"]
    # Spark 4.1 keeps a table's OPTIONS for itself: it hands the source none.
    with pytest.raises(Exception, match="stagingLocation"):
        spark.sql(f"SELECT body FROM {table}").collect()
    with pytest.raises(Exception, match="queueUrl"):
        spark.sql(f"INSERT INTO {table} (body) VALUES ('a')")


def test_wrong_options_fail_the_statement_that_makes_the_table(
    spark: Any, options: Mapping[str, str], table: str
) -> None:
    with pytest.raises(Exception, match="maxConnection"):
        spark.sql(f"CREATE TABLE {table} USING sqs OPTIONS {listed(options, maxConnection='3')}")
    with pytest.raises(Exception, match="'waitTimeSeconds': '0'"):
        spark.sql(f"CREATE TEMPORARY VIEW sqs_view USING sqs OPTIONS {listed(options, waitTimeSeconds='0')}")


@pytest.mark.slow
def test_the_retained_log_is_queried_without_a_queue(
    spark: Any, options: Mapping[str, str], fill: Any, table: str
) -> None:
    fill(30)
    assert spark.read.format("sqs").options(**options).load().count() == 30
    place = {"stagingLocation": options["stagingLocation"]}
    spark.sql(f"CREATE TEMPORARY VIEW sqs_view USING sqs OPTIONS {listed(place)}")
    for _ in range(2):
        assert spark.sql("SELECT count(DISTINCT message_id) n FROM sqs_view").first().n == 30
