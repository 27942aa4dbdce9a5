"""What version 0.1.0 stores is read by every later one, and what later ones may store is refused.

The files under `stored/` were made once by `python -m tests.spark.stored.make`; once 0.1.0 is released, a change of a
format makes new ones beside them, and these stay.
"""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sluice_jobs.table_log import TableLog, Transaction
from sluice_spark.errors import InvalidOffset, SluiceSparkError, UnknownFormat
from sluice_spark.log.bad_records import count_errors
from sluice_spark.log.latest import ReceiverStatus, read_status
from sluice_spark.log.planning import Offset, Position, Totals
from sluice_spark.log.segments import Header, list_segments, read_header, read_rows, segment_name
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import FileStore

STORED = Path(__file__).parent / "stored" / "1"
COLUMNS = '{"type": "struct", "fields": [{"name": "date", "type": "date", "nullable": true, "metadata": {}}]}'
STAGING = FileStore(STORED / "staging")
QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders.fifo"
ROWS = [
    {
        "message_id": "m-1",
        "body": "one",
        "attributes": [
            ("colour", {"type": "String", "string": "red", "binary": None}),
            ("blob", {"type": "Binary", "string": None, "binary": b"\x00\x01"}),
        ],
        "message_group_id": "g",
        "message_deduplication_id": "d",
        "sequence_number": "18870000000000000001",
        "sent_at": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "first_received_at": datetime(2023, 11, 14, 22, 13, 21, tzinfo=UTC),
        "receive_count": 2,
        "sender_id": "AIDA",
        "queue_url": QUEUE,
        "trace_header": "Root=1-00000000-000000000000000000000000",
        "dead_letter_queue_source_arn": "arn:aws:sqs:eu-west-1:123456789012:source.fifo",
    },
    {
        "message_id": "m-2",
        "body": "zwö",
        "attributes": [],
        "message_group_id": None,
        "message_deduplication_id": None,
        "sequence_number": None,
        "sent_at": None,
        "first_received_at": None,
        "receive_count": 1,
        "sender_id": None,
        "queue_url": QUEUE,
        "trace_header": None,
        "dead_letter_queue_source_arn": None,
    },
]


def stored(name: str) -> Any:
    return json.loads((STORED / name).read_text())


def test_segments_are_read_with_their_headers() -> None:
    assert sorted(list_segments(STAGING)) == [0, 1]
    assert read_header(STAGING, 0) == Header(number=0, epoch=0, writer="w0", published_ms=1_700_000_002_000)
    assert read_header(STAGING, 1) == Header(
        number=1,
        epoch=0,
        writer="w0",
        published_ms=1_700_000_003_000,
        messages=2,
        size=7,
        messages_before=0,
        size_before=0,
        deletions_failed=1,
    )
    assert read_rows(STAGING.read(segment_name(1))).to_pylist() == ROWS


def test_the_log_goes_on_where_it_ended() -> None:
    view = StagedLog(STAGING).read_log()
    assert view.offset(view.end) == Offset(position=Position(2), totals=Totals(messages=2, size=7), deletions_failed=1)


def test_what_tasks_noted_beside_the_segments_is_read() -> None:
    assert count_errors(STAGING, Position(0), Position(9)) == 1
    bad = STORED / "staging" / "00000000000000000001-0-2-0-1.parquet"
    assert pq.read_table(bad).to_pylist() == [{"body": "{", "bad_record": "not JSON"}]


def test_an_offset_is_read_and_written_as_it_stands_in_checkpoints() -> None:
    offset = Offset(
        position=Position(3, 2),
        totals=Totals(messages=12, size=345),
        deletions_failed=1,
        errors=2,
        errors_counted_to=Position(3),
    )
    assert Offset.parse(stored("offset.json")) == offset
    assert offset.json() == stored("offset.json")


def test_a_status_is_read_and_a_later_versions_passed_over(tmp_path: Path) -> None:
    status = ReceiverStatus(
        at_ms=1_700_000_005_000, began_ms=1_700_000_000_000, state="failing", reason="Timeout", requests=7
    )
    assert read_status(STAGING) == status
    shutil.copytree(STORED / "staging", tmp_path / "staging")
    (tmp_path / "staging" / "status" / "00000009999999999999.v2").touch()
    assert read_status(FileStore(tmp_path / "staging")) == status


def later_segment(folder: Path) -> None:
    path = folder / "staging" / segment_name(1)
    path.write_bytes(path.read_bytes().replace(b'"version": 3', b'"version": 4'))
    read_header(FileStore(folder / "staging"), 1)


def later_note(folder: Path) -> None:
    (folder / "staging" / "errors" / "00000000000000000002-0-2-0-1.v2").touch()
    count_errors(FileStore(folder / "staging"), Position(0), Position(9))


def later_table(folder: Path) -> None:
    log = TableLog(str(folder / "table"), schema=COLUMNS, partition_columns=["date"])
    log.append([], Transaction(app_id="query", version=0))
    actions = {"protocol": {"minReaderVersion": 9, "minWriterVersion": 9}}
    (folder / "table" / "_delta_log" / "00000000000000000002.json").write_text(json.dumps(actions))
    log.files()


def later_offset(_: Path) -> None:
    Offset.parse({**stored("offset.json"), "version": 2})


@pytest.mark.parametrize(
    ("later", "error"),
    [
        (later_segment, UnknownFormat),
        (later_note, UnknownFormat),
        (later_table, UnknownFormat),
        (later_offset, InvalidOffset),
    ],
)
def test_what_a_later_version_stored_is_refused(
    later: Callable[[Path], None], error: type[SluiceSparkError], tmp_path: Path
) -> None:
    folder = tmp_path / "stored"
    shutil.copytree(STORED, folder)
    with pytest.raises(error, match=r"version|protocol"):
        later(folder)
