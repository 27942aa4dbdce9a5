"""Writers of the `sqs` sink, which adapt Spark's interface.

Options and columns are checked on the driver, when a writer is created; rows are checked in the tasks, when they are
sent. A writer contains names and options but no credentials: each task finds credentials itself.
"""

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark.sql.datasource
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sluice_spark.errors import InvalidOption
from sluice_spark.options import build_client_factory
from sluice_spark.sink.options import SinkOptions, check_columns, parse_sink_options
from sluice_spark.sink.outgoing import (
    DeduplicationIds,
    OutgoingMessage,
    RowPosition,
    UnsentRow,
    WriteContext,
    build_message,
)
from sluice_spark.sink.sending import SendReport, send_all
from sluice_spark.workers import run, speed_up_tasks

log = logging.getLogger(__name__)

ROWS_AT_ONCE = 100  # number of rows converted to Python objects at once; more rows would slow down garbage collection
# Spark sets these properties in streaming jobs. A restart keeps the query id; a retry also keeps the batch id.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"

if TYPE_CHECKING:
    _StreamWriter: Any = DataSourceStreamWriter
else:  # Spark 4.1 and later can pass Arrow batches.
    _StreamWriter = getattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)


class TaskReport(WriterCommitMessage):
    """A task's commit message, which contains the task's report."""

    def __init__(self, report: SendReport) -> None:
        self.report = report


class _TaskWriter:
    """The part of a writer that runs in tasks. Batch and streaming writers share this part."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._write_id = uuid.uuid4().hex  # All attempts of a task share this id.

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send the task's rows, given as Arrow batches or as Rows."""
        speed_up_tasks()
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        query = context.getLocalProperty(QUERY_ID) if context else None
        write = f"{query}/{context.getLocalProperty(BATCH_ID)}" if context and query else self._write_id
        ids = DeduplicationIds(write if self._options.deduplication == "row" else None)
        addressing = WriteContext(queue_urls=self._options.queues.queue_urls, ids=ids)
        report = run(
            send_all(
                _convert_parts(iterator, partition, addressing),
                build_client_factory(self._options.queues, self._options.queues.connections)(),
                lanes=self._options.queues.connections,
                fail_on_error=self._options.fail_on_error,
            )
        )
        return TaskReport(report)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803  Spark's name
        """Log the rows that the tasks have not sent, if any."""
        reports = [message.report for message in messages if isinstance(message, TaskReport)]
        unsent = sum(report.unsent for report in reports)
        if unsent:
            places = "; ".join(str(place) for report in reports for place in report.unsent_rows)
            write = "the write" if batchId is None else f"batch {batchId}"
            log.error("%s: %d rows were not sent: %s", write, unsent, places)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803  Spark's name
        """Log how many messages finished tasks have sent, because a failed write doesn't remove these messages."""
        sent = sum(message.report.sent for message in messages if isinstance(message, TaskReport))
        write = "the write" if batchId is None else f"batch {batchId}"
        log.error("%s failed; %d messages of its finished tasks are in the queue", write, sent)


class SqsWriter(_TaskWriter, DataSourceArrowWriter):
    """Writes a batch DataFrame to queues."""


class SqsStreamWriter(_TaskWriter, _StreamWriter):
    """Writes a streaming DataFrame to queues. A restarted query sends its last batch again."""


def check_write(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    """Check options and columns, before there is a row. Raises InvalidOption, InvalidColumn."""
    if overwrite:
        raise InvalidOption("mode", "a queue can't be overwritten: append")
    options = parse_sink_options(given)
    check_columns(schema, options)
    return options


def _convert_parts(
    iterator: Iterator[Any], partition: int, context: WriteContext
) -> Iterator[Iterable[OutgoingMessage | UnsentRow]]:
    """Convert Arrow batches, or single Rows, to messages with their positions, lazily.

    The sender takes one message at a time: converting a whole batch at once would delay the handling of responses.
    """
    number = 0
    for rows in iterator:
        if isinstance(rows, pa.RecordBatch):
            yield _build_messages(rows, number, partition, context)
            number += rows.num_rows
        else:
            yield [build_message(rows.asDict(recursive=True), RowPosition(partition, number), context)]
            number += 1


def _build_messages(
    batch: pa.RecordBatch, number: int, partition: int, context: WriteContext
) -> Iterator[OutgoingMessage | UnsentRow]:
    for start in range(0, batch.num_rows, ROWS_AT_ONCE):
        rows = batch.slice(start, ROWS_AT_ONCE).to_pylist()
        for place, row in enumerate(rows, number + start):
            yield build_message(row, RowPosition(partition, place), context)
