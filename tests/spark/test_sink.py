import asyncio
import pickle
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DataType, IntegerType, StringType, StructField, StructType
from sluice_spark.errors import InvalidColumn, InvalidOption, QueueRefused, RowsNotSent
from sluice_spark.sink.options import CONNECTIONS_DEFAULT, parse_sink_options
from sluice_spark.sink.outgoing import (
    BATCH_BYTES,
    Batch,
    DeduplicationIds,
    OutgoingMessage,
    Packer,
    RowPosition,
    UnsentRow,
    WriteContext,
    build_message,
)
from sluice_spark.sink.sending import REPORTED_ROWS_LIMIT, SendReport, send_all
from sluice_spark.sink.writers import check_write
from sluice_spark.sqs.client import ATTEMPTS, SqsClient

from tests.spark.clients import client_of

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/q"
FIFO = QUEUE + ".fifo"
HERE = RowPosition(3, 7)


def addressing(*queue_urls: str, write: str | None = "w") -> WriteContext:
    return WriteContext(queue_urls=queue_urls, ids=DeduplicationIds(write))


def message(row: Mapping[str, Any], *queue_urls: str, **more: Any) -> OutgoingMessage:
    made = build_message(row, HERE, addressing(*(queue_urls or (QUEUE,)), **more))
    assert isinstance(made, OutgoingMessage), made
    return made


def fault(row: Mapping[str, Any], *queue_urls: str) -> str:
    made = build_message(row, HERE, addressing(*(queue_urls or (QUEUE,))))
    assert isinstance(made, UnsentRow), made
    return str(made)


def test_a_message_of_exactly_the_limit_is_sent_and_one_byte_more_is_not() -> None:
    attributes = {"name": "value"}  # with its type "String" 15 bytes
    assert message({"body": "x" * (BATCH_BYTES - 15), "attributes": attributes}).size == BATCH_BYTES
    assert "1048577 bytes" in fault({"body": "x" * (BATCH_BYTES - 14), "attributes": attributes})
    assert "1048578 bytes" in fault({"body": "é" * (BATCH_BYTES // 2 + 1)})


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"body": None}, "body is null"),
        ({"body": b""}, "body is empty"),
        ({"body": b"ab\xff"}, "body is not UTF-8: invalid start byte at byte 2"),
        ({"body": "a\x00"}, r"body has U\+0000 at 1"),
        ({"body": "a\ufffe"}, r"body has U\+FFFE at 1"),
        ({"body": "a", "delay_seconds": 901}, "delay_seconds is 901"),
        ({"body": "a", "attributes": {str(n): "v" for n in range(11)}}, "11 attributes"),
        ({"body": "a", "attributes": {"AWS.x": "v"}}, "attribute name 'AWS.x'"),
        ({"body": "a", "attributes": {"a..b": "v"}}, "attribute name 'a..b'"),
        ({"body": "a", "attributes": {"a": None}}, "attribute 'a' is null"),
        ({"body": "a", "attributes": {"a": ""}}, "attribute 'a' is empty"),
        ({"body": "a", "attributes": {"a": {"type": "Float", "string": "1"}}}, "type 'Float'"),
        ({"body": "a", "attributes": {"a": {"type": "Binary", "string": "1"}}}, "no bytes"),
        ({"body": "a", "message_group_id": "two words"}, "message_group_id"),
        ({"body": "a", "message_deduplication_id": "d"}, "only a FIFO queue"),
    ],
)
def test_a_row_that_is_no_message_says_where_and_why(row: Mapping[str, Any], why: str) -> None:
    with pytest.raises(AssertionError, match=f"partition 3, row 7: .*{why}"):
        raise AssertionError(fault(row))


@given(
    st.text(
        st.characters() | st.sampled_from("\t\n\r\x0b\ud7ff\ud800\udfff\ue000\ufffd\ufffe\uffff\U0001ffff"), min_size=1
    )
)
def test_a_body_is_taken_if_all_of_its_characters_are_xmls(text: str) -> None:
    ranges = ((0x20, 0xD7FF), (0xE000, 0xFFFD), (0x10000, 0x10FFFF))  # https://www.w3.org/TR/REC-xml/#charsets
    wrong = [c for c in text if c not in "\t\n\r" and not any(low <= ord(c) <= high for low, high in ranges)]
    if wrong:
        assert f"U+{ord(wrong[0]):04X} at {text.index(wrong[0])}" in fault({"body": text})
    else:
        assert message({"body": text}).size == len(text.encode())


def test_a_fault_never_shows_the_body() -> None:
    assert "secret" not in fault({"body": "secret\x00"})


def test_the_option_overrides_the_column_and_several_queues_are_all_there_are() -> None:
    assert message({"body": "a", "queue_url": FIFO}, QUEUE).queue_url == QUEUE
    assert message({"body": "a", "queue_url": QUEUE}, QUEUE, QUEUE + "2").queue_url == QUEUE
    assert "none of option queueUrl's" in fault({"body": "a", "queue_url": QUEUE + "3"}, QUEUE, QUEUE + "2")
    made = build_message({"body": "a", "queue_url": None}, HERE, addressing())
    assert "queue_url is null" in str(made)


def test_a_fifo_message_needs_a_group_and_takes_no_delay() -> None:
    assert "message_group_id is null" in fault({"body": "a"}, FIFO)
    assert "delay_seconds" in fault({"body": "a", "message_group_id": "g", "delay_seconds": 1}, FIFO)


def ids(rows: Sequence[Mapping[str, Any]], write: str | None = "w", queue_url: str = FIFO) -> list[str]:
    """Of a task's rows."""
    context = addressing(queue_url, write=write)
    made = [build_message(row, RowPosition(0, number), context) for number, row in enumerate(rows)]
    return [message.entry["MessageDeduplicationId"] for message in made if isinstance(message, OutgoingMessage)]


def test_a_fifo_message_is_identified_by_its_column_or_by_what_it_is() -> None:
    row = {"body": "a", "message_group_id": "g"}
    assert ids([{**row, "message_deduplication_id": "mine"}]) == ["mine"]
    received = row | {"message_deduplication_id": "of an earlier one, too", "sequence_number": "1"}
    assert ids([received]) == ids([row])
    assert "MessageDeduplicationId" not in message(received).entry
    others: list[dict[str, Any]] = [{"body": "b"}, {"message_group_id": "h"}, {"attributes": {"k": "v"}}]
    for write in ("w", None):
        [own] = ids([row], write)
        assert own not in [id_ for other in others for id_ in ids([row | other], write)]
        assert own not in ids([row], write, FIFO.replace("q.fifo", "r.fifo"))
    assert ids([row], "w") != ids([row], "x")
    assert ids([row], None) == ids([row], None)


@pytest.mark.parametrize("drawn", range(20))
def test_ids_are_the_same_however_rows_are_partitioned_and_differ_for_each(drawn: int) -> None:
    """So a batch that is written again with another parallelism loses no row and sends none twice."""
    shuffle = random.Random(drawn)
    rows = [{"body": f"{shuffle.randrange(20)}", "message_group_id": f"{shuffle.randrange(5)}"} for _ in range(60)]

    def write_in(partitions: int) -> list[str]:
        """Each group is in one partition, where its rows may be in any order."""
        again = shuffle.sample(rows, len(rows))
        parts = [[row for row in again if int(row["message_group_id"]) % partitions == n] for n in range(partitions)]
        return sorted(id_ for part in parts for id_ in ids(part))

    first = write_in(3)
    assert len(set(first)) == len(rows)
    assert write_in(1) == write_in(2) == write_in(5) == first


def test_equal_rows_of_all_writes_are_one_message_where_that_is_asked_for() -> None:
    row = {"body": "a", "message_group_id": "g"}
    assert len(set(ids([row, row], None) + ids([row], None))) == 1
    assert len(set(ids([row, row]))) == 2


def test_arrow_rows_and_spark_rows_make_the_same_message() -> None:
    attribute = {"type": "Number", "string": "1", "binary": None}
    pairs = message({"body": "a", "attributes": [("n", attribute)]})  # Arrow's maps are lists of pairs in Python
    assert pairs == message({"body": "a", "attributes": {"n": attribute}})
    assert pairs.entry["MessageAttributes"] == {"n": {"DataType": "Number", "StringValue": "1"}}


def test_a_trace_header_is_sent_as_a_system_attribute() -> None:
    assert message({"body": "a", "trace_header": "Root=1"}).entry["MessageSystemAttributes"] == {
        "AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}
    }


def packed(messages: Iterable[OutgoingMessage], lanes: int) -> Sequence[Batch]:
    packer = Packer(lanes)
    return [batch for one in messages if (batch := packer.add(one))] + list(packer.take_remaining())


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(1, BATCH_BYTES)), max_size=60),
    st.integers(1, 5),
)
def test_every_message_is_in_one_batch_and_no_batch_is_too_much(
    rows: Sequence[tuple[str | None, int]], lanes: int
) -> None:
    messages = [
        OutgoingMessage(RowPosition(0, number), FIFO if group else QUEUE, {}, size, group)
        for number, (group, size) in enumerate(rows)
    ]
    batches = packed(messages, lanes)
    assert Counter(one.row_position for batch in batches for one in batch.messages) == Counter(
        m.row_position for m in messages
    )
    for batch in batches:
        groups = [one.group for one in batch.messages if one.group]
        assert len(batch.messages) <= 10
        assert sum(one.size for one in batch.messages) <= BATCH_BYTES
        assert {one.queue_url for one in batch.messages} == {batch.queue_url}
        assert len(set(groups)) == len(groups)
    for group in "abc":
        mine = [(batch.lane, one.row_position.row) for batch in batches for one in batch.messages if one.group == group]
        assert len({lane for lane, _ in mine}) <= 1
        assert mine == sorted(mine)


class Sending:
    """Sends to the in-memory SQS, on clients that record their waits instead of waiting."""

    def __init__(self, sqs: Any) -> None:
        self.sqs, self.waits = sqs, list[float]()

    def run(self, rows: Sequence[Mapping[str, Any]], *, fail_on_error: bool = True, lanes: int = 2) -> SendReport:
        where = addressing(self.sqs.queue_url("q"))
        parts = iter([[build_message(row, RowPosition(0, number), where)] for number, row in enumerate(rows)])
        return asyncio.run(send_all(parts, self.client(), lanes=lanes, fail_on_error=fail_on_error))

    def client(self) -> SqsClient:
        async def sleep(seconds: float) -> None:
            self.waits.append(seconds)

        return client_of(self.sqs, connections=2, sleep=sleep)

    def bodies(self) -> list[str]:
        taken: list[str] = []
        while found := self.sqs.queues["q"].receive(10, None, 0.0):
            taken += [one.body for one in found]
        return sorted(taken)


@pytest.fixture
def sending(sqs: Any) -> Sending:
    return Sending(sqs)


def rows(count: int) -> list[Mapping[str, Any]]:
    return [{"body": f"{number:03d}"} for number in range(count)]


def test_what_fails_within_a_batch_is_sent_again_by_id_until_it_is_taken(sending: Sending) -> None:
    sending.sqs.script.add({"action": "SendMessageBatch", "how": "partial", "count": 3})
    report = sending.run(rows(10), lanes=1)
    assert (report.sent, report.unsent) == (10, 0)
    assert sending.bodies() == [row["body"] for row in rows(10)]
    assert sending.sqs.calls["SendMessageBatch"] == 4
    assert len(sending.waits) == 3


def test_what_fails_every_time_is_given_up_and_named(sending: Sending) -> None:
    sending.sqs.script.add({"action": "SendMessageBatch", "how": "partial", "count": 100})
    report = sending.run(rows(1), fail_on_error=False)
    assert [str(place) for place in report.unsent_rows] == [
        f"partition 0, row 0: SQS says InternalError: by script, {ATTEMPTS} times"
    ]


def test_what_is_the_senders_fault_is_not_tried_again(sending: Sending) -> None:
    sending.sqs.script.add({"action": "SendMessageBatch", "how": "partial", "status": 400, "code": "InvalidMessage"})
    report = sending.run(rows(3), fail_on_error=False)
    assert (report.sent, report.unsent, sending.waits) == (1, 2, [])
    assert [unsent.row_position.row for unsent in report.unsent_rows] == [0, 2]


def test_with_fail_on_error_the_first_such_row_ends_the_write(sending: Sending) -> None:
    with pytest.raises(RowsNotSent, match="partition 0, row 1: body is null"):
        sending.run([{"body": "a"}, {"body": None}, {"body": "b"}])
    assert sending.bodies() == []


def test_a_call_that_fails_is_made_again(sending: Sending) -> None:
    sending.sqs.script.add({"action": "SendMessageBatch", "count": 2, "status": 503})
    assert sending.run(rows(25)).sent == 25
    assert sending.bodies() == [row["body"] for row in rows(25)]


def test_a_refusal_ends_the_write_whatever_fail_on_error_says(sending: Sending) -> None:
    sending.sqs.script.add({"action": "SendMessageBatch", "count": 9, "status": 403, "code": "AccessDenied"})
    with pytest.raises(QueueRefused, match="AccessDenied"):
        sending.run(rows(200), fail_on_error=False)


def test_places_are_bounded_and_all_are_counted(sending: Sending) -> None:
    report = sending.run([{"body": ""}] * 50, fail_on_error=False)
    assert (report.unsent, len(report.unsent_rows)) == (50, REPORTED_ROWS_LIMIT)


def test_a_thousand_rows_take_a_hundred_calls(sending: Sending) -> None:
    assert sending.run(rows(1000), lanes=4).sent == 1000
    assert sending.sqs.calls["SendMessageBatch"] == 100


def test_options_are_case_insensitive_and_the_sources_are_passed_over() -> None:
    options = parse_sink_options({"QUEUEURL": QUEUE, "failonerror": "FALSE", "waitTimeSeconds": "3", "path": "x"})
    assert (options.queues.queue_urls, options.fail_on_error) == ((QUEUE,), False)
    assert options.queues.connections == CONNECTIONS_DEFAULT
    assert parse_sink_options({"maxConnections": "2"}).queues.connections == 2


@pytest.mark.parametrize(
    ("given_option", "complaint"),
    [
        ({"failOnErrors": "true"}, "failonerrors"),
        ({"failOnError": "1"}, "failOnError"),
        ({"deduplication": "random"}, "deduplication"),
        ({"queueUrl": "q"}, "queueUrl"),
        ({"maxConnections": "none"}, "maxConnections"),
        ({"maxConnections": "0"}, "maxConnections"),
    ],
)
def test_a_malformed_option_is_named(given_option: Mapping[str, str], complaint: str) -> None:
    with pytest.raises(InvalidOption, match=complaint):
        parse_sink_options(given_option)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"text": StringType()}, "'body': missing; there are text"),
        ({"body": IntegerType()}, "'body': is int"),
        ({"body": StringType(), "price": IntegerType()}, "'price': unknown"),
    ],
)
def test_a_column_that_no_message_has_is_named(columns: Mapping[str, DataType], complaint: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(InvalidColumn, match=complaint):
        check_write({"queueUrl": QUEUE}, schema, overwrite=False)


def test_a_queue_cannot_be_overwritten() -> None:
    with pytest.raises(InvalidOption, match="append"):
        check_write({"queueUrl": QUEUE}, StructType([StructField("body", StringType())]), overwrite=True)


def test_errors_survive_the_way_from_a_task_to_the_driver() -> None:
    error = pickle.loads(pickle.dumps(InvalidColumn("body", "missing")))
    assert (error.column, str(error)) == ("body", "column 'body': missing")
    assert str(pickle.loads(pickle.dumps(RowsNotSent("partition 0, row 1: x")))) == "partition 0, row 1: x"
