"""No message ends `land`: each lands or is quarantined, and all readers see the same rows.

Whatever a sender writes is drawn at random here: bodies that look like events, metadata, and attributes that are
columns.
"""

import json
import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.spark.with_spark.land_programs import table_at
from tests.spark.with_spark.readers import BESIDE_SPARK, by_spark

SENT = datetime(2026, 11, 20, 12, tzinfo=UTC)
SEEN = ("message_id", "exchange", "date", "late", "happened_at", "at_", "day_", "price_")
COLUMNS = {"at_": "timestamp", "day_": "date", "price_": "decimal(10,2)"}
ROWS = 200

TIMES = (
    *[f"{year}-01-01T00:00:00Z" for year in ("0000", "0001", "0500", "0999", "1000", "1582", "1969", "2026", "9999")],
    "2026-02-30T00:00:00Z",
    "10000-01-01T00:00:00Z",
    "+294247-01-10T04:00:54Z",
    "-0001-01-01T00:00:00Z",
    "2026-11-20T23:59:60Z",
    "2026-11-20T11:00:00.123456789Z",
    "NaN",
    "",
)
NAMES = (
    *[f"a{chr(code)}b" for code in (*range(0x20), 0x7F, 0x85, 0x9F, 0x2028, 0xFEFF, 0xFFFF, 0x1F600)],
    *"/\\:*?\"'<>|%#=&{}[] .~^",
    ".",
    "..",
    "__HIVE_DEFAULT_PARTITION__",
    "_hidden",
    ".hidden",
    "null",
    "true",
    "5",
    "%00",
    "a" * 300,
    "é" * 127,
    "\ud800",
)
NUMBERS = ("0", "-1.5", "1e400", "NaN", "Infinity", "99999999999.99", "1_000", "\u0661")


@pytest.fixture
def landed(job_spark: Any, tmp_path: Path) -> Iterator[Any]:
    from sluice_jobs.land import QUERY_ID, BatchWriter  # noqa: PLC0415  needs PySpark
    from sluice_jobs.landing import ExtraColumns, messages_layout, quarantine_layout  # noqa: PLC0415  as above
    from sluice_jobs.tables import ParquetTable  # noqa: PLC0415  as above

    extras = ExtraColumns(attributes=COLUMNS)
    job_spark.sparkContext.setLocalProperty(QUERY_ID, str(uuid.uuid4()))
    yield BatchWriter(
        ParquetTable(f"{tmp_path}/tables/messages", messages_layout(extras)),
        ParquetTable(f"{tmp_path}/bad/quarantine", quarantine_layout()),
        late_days=3,
        extras=extras,
    )
    job_spark.sparkContext.setLocalProperty(QUERY_ID, None)


def text(value: str) -> dict[str, Any]:
    return {"type": "String", "string": value, "binary": None}


def hostile(number: int, drawn: random.Random) -> dict[str, Any]:
    event = {"kind": "poll", "id": "1", "site": "s", "at": drawn.choice(TIMES)}
    metadata = {
        "exchange": drawn.choice(NAMES),
        "key": drawn.choice(NAMES),
        "trace": [drawn.choice(NAMES)],
        "id": drawn.choice(NAMES),
        "published": drawn.choice([0, -1, 2**63 - 1, 2**64, 253_402_300_799_999, 253_402_300_800_000, 1e300]),
    }
    attributes = {
        "at_": text(drawn.choice(TIMES)),
        "day_": text(drawn.choice(TIMES)[:-10]),
        "price_": text(drawn.choice(NUMBERS)),
    }
    name = drawn.choice(["x-qpid", "x-exchange", "neither"])
    if name == "x-qpid":
        attributes[name] = text(json.dumps(metadata))
    elif name == "x-exchange":
        attributes["exchange"] = text(drawn.choice(NAMES).encode("utf-8", "replace").decode())
    body = drawn.choice([json.dumps(event), drawn.choice(NAMES).encode("utf-8", "replace").decode()])
    return {"message_id": f"{number:06d}", "body": body, "sent_at": SENT, "receive_count": 1, "attributes": attributes}


def ids(frame: Any) -> list[str]:
    return sorted(row.message_id for row in frame.select("message_id").collect())


def without_zone(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row with times as PySpark has them: all are of UTC, and the others say so."""
    return tuple(value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in row)


def test_each_row_lands_or_is_quarantined_and_all_readers_agree(
    job_spark: Any, received: Any, landed: Any, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    drawn = random.Random(seed)
    rows = [hostile(number, drawn) for number in range(ROWS)]
    landed(received(rows), 0)
    table = table_at(tmp_path, "tables/messages")
    bad = table_at(tmp_path, "bad/quarantine").read(job_spark)
    good = table.read(job_spark)
    assert sorted(ids(good) + ids(bad)) == [row["message_id"] for row in rows], f"seed {seed}"
    assert bad.where("reason IS NULL").count() == 0
    expected = by_spark(job_spark, table, SEEN)
    agree = {
        name: [without_zone(row) for row in read(table.location, SEEN)] == expected
        for name, read in BESIDE_SPARK.items()
    }
    assert agree == dict.fromkeys(BESIDE_SPARK, True), f"seed {seed}"


def test_an_early_event_hides_no_other_row_from_readers(received: Any, landed: Any, tmp_path: Path) -> None:
    """Statistics of files are how readers skip files."""
    early = json.dumps({"kind": "poll", "id": "1", "site": "s", "at": "0500-01-01T00:00:00Z"})
    row = {"body": "m", "sent_at": SENT, "receive_count": 1, "attributes": {}}
    landed(received([row | {"message_id": "1", "body": early}, row | {"message_id": "2"}]), 0)
    for name, read in BESIDE_SPARK.items():
        for column in ("happened_at", "sent_at"):
            found = read(f"{tmp_path}/tables/messages", ("message_id", column))
            assert [row[0] for row in found] == ["1", "2"], (name, column)


def test_a_row_that_the_table_refuses_is_quarantined_and_all_others_land(
    job_spark: Any, received: Any, landed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whatever kind the fault is: here the writer can't write a body that says so."""
    from sluice_jobs.tables import ParquetTable  # noqa: PLC0415  needs PySpark

    write = ParquetTable.write

    def refuse(table: Any, frame: Any, label: str) -> Any:
        if "messages" in table.location and frame.where("body = 'refuse me'").head(1):
            raise OverflowError("date value out of range")
        return write(table, frame, label)

    monkeypatch.setattr(ParquetTable, "write", refuse)
    row = {"sent_at": SENT, "receive_count": 1, "attributes": {}}
    rows = [row | {"message_id": f"{number:03d}", "body": "m"} for number in range(3)]
    rows[1]["body"] = rows[2]["body"] = "refuse me"
    landed(received(rows), 0)
    landed(received(rows), 0)  # the batch comes again
    good, bad = table_at(tmp_path, "tables/messages").read(job_spark), table_at(tmp_path, "bad/quarantine")
    assert ids(good) == [row["message_id"] for row in rows if row["body"] == "m"]
    refused = bad.read(job_spark).orderBy("message_id").collect()
    assert [(row.message_id, row.reason) for row in refused] == [
        (name, "the table can't hold it: OverflowError: date value out of range") for name in ("001", "002")
    ]


def test_a_store_that_refuses_every_write_fails_the_batch(
    job_spark: Any, received: Any, landed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice_jobs.tables import ParquetTable  # noqa: PLC0415  needs PySpark

    def refuse(*_: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr(ParquetTable, "write", refuse)
    with pytest.raises(OSError, match="no space left"):
        landed(received([{"message_id": "1", "body": "m", "sent_at": SENT, "receive_count": 1, "attributes": {}}]), 0)
    assert not (tmp_path / "bad").exists()
