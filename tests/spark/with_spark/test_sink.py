import json
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

WITHIN_S = 60


@pytest.fixture
def queue(sqs: Any) -> Callable[[str], Any]:
    from tests.sqs.queues import Queue  # noqa: PLC0415  may be missing here

    return lambda name: sqs.queues.setdefault(name, Queue(name))


def messages(sqs: Any, name: str = "q") -> list[Mapping[str, Any]]:
    """All that can be received, as ReceiveMessage answers it."""
    queue, found = sqs.queues[name], []
    while taken := queue.receive(10, None, time.time()):
        for message in taken:
            found.append(json.loads(queue.encoded(message)))
            queue.delete(found[-1]["ReceiptHandle"], time.time())
    return found


def write(frame: Any, sqs: Any, name: str = "q", **options: Any) -> None:
    given = {"queueUrl": sqs.queue_url(name), "endpoint": sqs.url, **options}
    frame.write.format("sqs").mode("append").options(**given).save()


def test_each_row_is_one_message_sent_in_tens(spark: Any, sqs: Any) -> None:
    write(spark.range(0, 250, 1, 2).selectExpr("format_string('%06d', id) body"), sqs)
    assert sorted(message["Body"] for message in messages(sqs)) == [f"{number:06d}" for number in range(250)]
    assert sqs.calls["SendMessageBatch"] == 26  # 125 rows in each of two tasks


def test_attributes_group_delay_and_bytes_come_through(spark: Any, sqs: Any) -> None:
    frame = spark.sql(
        "SELECT cast('grüße' AS binary) body, map('kind', 'order') attributes, 'g1' message_group_id, 0 delay_seconds"
    )
    write(frame, sqs)
    (message,) = messages(sqs)
    assert message["Body"] == "grüße"
    assert message["MessageAttributes"] == {"kind": {"DataType": "String", "StringValue": "order"}}
    assert message["Attributes"]["MessageGroupId"] == "g1"


def test_what_the_source_read_can_be_written_to_another_queue(
    spark: Any, sqs: Any, queue: Callable[[str], Any], tmp_path: Path
) -> None:
    queue("copy")
    attributes = {"n": {"DataType": "Number", "StringValue": "7"}, "b": {"DataType": "Binary", "BinaryValue": "AAE="}}
    sqs.queues["q"].send({"MessageBody": "one", "MessageAttributes": attributes}, time.time())
    options = {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, "stagingLocation": str(tmp_path / "staging")}
    write(spark.read.format("sqs").options(**options).load(), sqs, "copy")
    (message,) = messages(sqs, "copy")
    assert (message["Body"], message["MessageAttributes"]) == ("one", attributes)


def test_rows_may_name_their_queues(spark: Any, sqs: Any, queue: Callable[[str], Any]) -> None:
    queue("other")
    rows = [("a", sqs.queue_url("q")), ("b", sqs.queue_url("other"))]
    frame = spark.createDataFrame(rows, "body string, queue_url string")
    frame.write.format("sqs").mode("append").option("endpoint", sqs.url).save()
    assert [message["Body"] for message in messages(sqs)] == ["a"]
    assert [message["Body"] for message in messages(sqs, "other")] == ["b"]


def test_a_task_that_is_tried_again_sends_no_fifo_message_twice(sqs: Any, queue: Callable[[str], Any]) -> None:
    """Each attempt has its own copy of the writer that the driver pickled once."""
    from pyspark.sql import Row  # noqa: PLC0415  may be missing here
    from sluice_spark.sink.options import parse_sink_options  # noqa: PLC0415  may be missing here
    from sluice_spark.sink.writers import SqsWriter  # noqa: PLC0415  may be missing here

    queue("q.fifo")
    writer = pickle.dumps(SqsWriter(parse_sink_options({"queueUrl": sqs.queue_url("q.fifo"), "endpoint": sqs.url})))
    rows = [Row(body=f"{number:02d}", message_group_id=str(number % 3)) for number in range(40)]

    def lost(rows: Iterable[Row]) -> Iterator[Row]:
        yield from rows
        raise OSError("on purpose")

    with pytest.raises(OSError, match="on purpose"):
        pickle.loads(writer).write(lost(rows[:31]))
    pickle.loads(writer).write(iter(rows))
    found = [(message["Attributes"]["MessageGroupId"], message["Body"]) for message in messages(sqs, "q.fifo")]
    assert sorted(body for _, body in found) == [row.body for row in rows]
    for group in "012":
        bodies = [body for of, body in found if of == group]
        assert bodies == sorted(bodies)


def test_two_writes_of_a_batch_to_one_fifo_queue_send_all_their_rows(
    spark: Any, sqs: Any, queue: Callable[[str], Any], tmp_path: Path
) -> None:
    """Both have the batch's id and the same partitions."""
    queue("q.fifo")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("".join(f"{number:02d}\n" for number in range(80)))

    def write_halves(batch: Any, _: int) -> None:
        rows = batch.selectExpr("value body", "'g' message_group_id").coalesce(1)
        for half in ("body < '40'", "body >= '40'"):
            write(rows.where(half), sqs, "q.fifo")

    frame = spark.readStream.text(f"{tmp_path}/in")
    writer = frame.writeStream.option("checkpointLocation", f"{tmp_path}/c").foreachBatch(write_halves)
    assert writer.trigger(availableNow=True).start().awaitTermination(100)
    assert [message["Body"] for message in messages(sqs, "q.fifo")] == [f"{number:02d}" for number in range(80)]


def test_no_key_travels_with_a_writer_or_its_answer(sqs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import Row  # noqa: PLC0415  may be missing here
    from sluice_spark.sink.options import parse_sink_options  # noqa: PLC0415  may be missing here
    from sluice_spark.sink.writers import SqsWriter  # noqa: PLC0415  may be missing here

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFOUND")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "found-secret")
    writer = SqsWriter(parse_sink_options({"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url}))
    answer = writer.write(iter([Row(body="a")]))
    for travelling in (pickle.dumps(writer), pickle.dumps(answer)):
        assert b"AKIAFOUND" not in travelling
        assert b"found-secret" not in travelling


def test_a_commit_logs_how_many_rows_were_not_sent_and_where_they_were(
    sqs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.sql import Row  # noqa: PLC0415  may be missing here
    from sluice_spark.sink.options import parse_sink_options  # noqa: PLC0415  may be missing here
    from sluice_spark.sink.writers import SqsWriter  # noqa: PLC0415  may be missing here

    given = {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, "failOnError": "false"}
    writer = SqsWriter(parse_sink_options(given))
    writer.commit([writer.write(iter([Row(body="a"), Row(body="secret\x00")])), None])
    assert "1 rows were not sent: partition 0, row 1: body has U+0000 at 6" in caplog.text
    assert "secret" not in caplog.text


def test_a_stream_is_written_and_the_batch_after_a_crash_is_not_sent_twice_to_a_fifo_queue(
    spark: Any, sqs: Any, queue: Callable[[str], Any], tmp_path: Path
) -> None:
    queue("q.fifo")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("".join(f'{{"body": "{n:03d}"}}\n' for n in range(50)))

    def run() -> None:
        frame = spark.readStream.schema("body string").json(str(tmp_path / "in"))
        writer = frame.selectExpr("body", "'g' message_group_id").writeStream.format("sqs")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.options(queueUrl=sqs.queue_url("q.fifo"), endpoint=sqs.url).trigger(availableNow=True).start()
        assert query.awaitTermination(WITHIN_S)

    run()
    for name in (tmp_path / "checkpoint" / "commits").glob("*0*"):  # as if the driver had died before the commit
        name.unlink()
    sends = sqs.calls["SendMessageBatch"]
    run()
    assert sqs.calls["SendMessageBatch"] == 2 * sends
    assert [message["Body"] for message in messages(sqs, "q.fifo")] == [f"{n:03d}" for n in range(50)]


def test_a_row_that_is_no_message_fails_the_write_and_is_named_by_its_place_or_is_left_out(
    spark: Any, sqs: Any
) -> None:
    frame = spark.range(0, 20, 1, 2).selectExpr("if(id = 13, '', 'x') body")
    with pytest.raises(Exception, match="partition 1, row 3: body is empty"):
        write(frame, sqs)
    messages(sqs)
    write(frame, sqs, failOnError="false")
    assert len(messages(sqs)) == 19


def test_columns_are_checked_before_any_row_is_sent(spark: Any, sqs: Any) -> None:
    with pytest.raises(Exception, match="'price': unknown"):
        write(spark.sql("SELECT 'x' body, 1 price"), sqs)
    assert "SendMessageBatch" not in sqs.calls
