"""The `sqs` data source: Spark's calls, in terms of the staged log and its receiver. Nothing is decided here.

One code for all versions of Spark from 4.0 on: `latestOffset` takes what 4.2 passes, and newer interfaces are mixed in
where they are importable.
"""

import importlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sluice_spark.access import credentials_of, resolved_endpoint
from sluice_spark.client import SqsClient
from sluice_spark.errors import InvalidOption
from sluice_spark.offsets import Offset, Position
from sluice_spark.options import WAIT_LIMIT_S, Options, parsed
from sluice_spark.planning import Admission, Slice, admitted, sliced
from sluice_spark.receiver import Intake, Receiver
from sluice_spark.segments import SPARK_SCHEMA
from sluice_spark.staging import StagedLog, batches
from sluice_spark.store import open_store
from sluice_spark.workers import spare_pyspark_zip

log = logging.getLogger(__name__)

NAME = "sqs"
BATCH_WAIT_S = 2  # a bounded read ends with an empty long poll: not the twenty seconds that suit a stream
RETAIN_EVERY_S = 60.0

try:  # Spark 4.2 and later
    _newer: Any = importlib.import_module("pyspark.sql.streaming.datasource")
except ImportError:
    _newer = None


class Rows(InputPartition):
    """Rows of the log for one task. Names a place; never a key."""

    def __init__(self, location: str, profile: str | None, slices: Sequence[Slice]) -> None:
        super().__init__(None)
        self.location, self.profile, self.slices = location, profile, slices


class SqsDataSource(DataSource):
    """`spark.read` and `spark.readStream` of format `sqs`. Register with `sluice_spark.register(spark)`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> str:
        """The columns; the first thing that Spark asks, so options are checked here."""
        parsed(self.options)
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """A bounded read: of the queues, or without `queueUrl` of the log that is retained."""
        del schema
        options = parsed(self.options)
        if options.admission != Admission():
            raise InvalidOption(
                "maxMessagesPerTrigger", "a batch read has no trigger: it ends when the queues are empty"
            )
        return SqsReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """An unbounded read of the queues."""
        del schema
        options = parsed(self.options)
        if not options.queue_urls:
            raise InvalidOption("queueUrl", "missing: a stream needs at least one")
        return StreamReader(options)


class _Reading:
    """What executors do, the same for a batch and a stream."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The partition's rows, the same at every call."""
        assert isinstance(partition, Rows)  # noqa: S101  tells mypy what our own partitions() made
        spare_pyspark_zip()
        return batches(open_store(partition.location, partition.profile), partition.slices)


class SqsReader(_Reading, DataSourceReader):
    """Receives in `partitions`, on the driver: a task that is tried again reads what was staged, and receives
    nothing."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Receives until the queues are empty, and stages; each action of a plan does so once."""
        staged = StagedLog(open_store(self._options.staging_location, self._options.identity.profile))
        if not self._options.queue_urls:
            view = staged.view()
            return _rows(self._options, sliced(view.between(Position(view.first), view.end)))
        start = staged.end()
        staged.take_over(start)
        receiver = _receiver(self._options, staged, until_empty=True)
        receiver.start(staged.log.end)
        receiver.join()
        receiver.check()
        return _rows(self._options, sliced(staged.log.between(start, staged.log.end)))


class SqsStreamReader(_Reading, DataSourceStreamReader):
    """Lives in Spark's driver-side Python process; `read` runs in the executors', on a pickled copy that has not
    started."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._staged: StagedLog | None = None
        self._receiver: Receiver | None = None
        self._end = Position(0)
        self._retained_at = 0.0

    def __getstate__(self) -> Mapping[str, Any]:
        """Only the options travel."""
        return {"_options": self._options, "_staged": None, "_receiver": None, "_end": Position(0), "_retained_at": 0.0}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """The oldest retained segment: what an earlier query staged and never committed is adopted."""
        store = open_store(self._options.staging_location, self._options.identity.profile)
        start = StagedLog(store).oldest()
        return self._started(start).log.offset(start).json()

    def latestOffset(  # noqa: N802  Spark's name
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """As far as is staged and admitted. Never waits for a message.

        Before 4.2 Spark says no start: then it is the last end that it was given, which it has committed by now.
        """
        position = Offset.parse(start).position if start is not None else self._end
        staged = self._started(position)
        assert self._receiver is not None  # noqa: S101  tells mypy what _started did
        self._receiver.check()
        view = staged.log
        self._end = admitted(view, position, self._admission(limit))
        self._receiver.consumed(self._end)
        return view.offset(self._end).json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  Spark's name, 4.2 and later
        """Our own limits apply by themselves, so that they do on every version."""
        return _newer.ReadAllAvailable()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The rows between. Spark 4.0 and 4.1 call this with twice the same offset at a restart, to say where it
        begins."""
        first, last = Offset.parse(start).position, Offset.parse(end).position
        staged = self._started(first)
        self._end = max(self._end, last)
        view = staged.log
        if first != last and first.segment < view.first:  # a batch planned before the place where we began
            view = StagedLog(open_store(self._options.staging_location, self._options.identity.profile)).view(first)
        return _rows(self._options, sliced(view.between(first, last)))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark has written the batch; old segments may go."""
        position = Offset.parse(end).position
        staged = self._started(position)
        staged.consumed(position)
        if time.monotonic() - self._retained_at > RETAIN_EVERY_S:
            self._retained_at = time.monotonic()
            retention_s = self._options.retention_s
            threading.Thread(target=_retain, args=(staged, position, retention_s), daemon=True).start()

    def stop(self) -> None:
        """Drains in the background; the process ends when that is done."""
        if self._receiver:
            self._receiver.stop()

    def _started(self, start: Position) -> StagedLog:
        if self._staged is None:
            staged = StagedLog(open_store(self._options.staging_location, self._options.identity.profile))
            staged.take_over(start)
            self._receiver = _receiver(self._options, staged, until_empty=False)
            self._receiver.start(start)
            self._end, self._staged = start, staged
            _unwind_at_termination()
        return self._staged

    def _admission(self, limit: Any) -> Admission:
        """The options', and a read limit that Spark asks for in addition."""
        own = self._options.admission
        asked = getattr(limit, "max_rows", None)
        if asked is None:
            return own
        return Admission(messages=min(asked, own.messages or asked), size=own.size)


StreamReader: type[SqsStreamReader] = SqsStreamReader


def _receiver(options: Options, staged: StagedLog, *, until_empty: bool) -> Receiver:
    endpoint = resolved_endpoint(
        options.queue_urls[0], region=options.region, endpoint=options.endpoint, identity=options.identity
    )
    credentials = credentials_of(options.identity, region=endpoint.region)
    intake = Intake(
        queue_urls=options.queue_urls,
        connections=options.connections,
        wait_s=options.wait_s or (BATCH_WAIT_S if until_empty else WAIT_LIMIT_S),
        visibility_s=options.visibility_s,
        delete=options.delete,
        until_empty=until_empty,
    )
    return Receiver(staged, lambda: SqsClient(endpoint, credentials, connections=2 * options.connections), intake)


def _rows(options: Options, tasks: Sequence[Sequence[Slice]]) -> Sequence[InputPartition]:
    """At least one partition: 4.0 and 4.1 fail on a batch read without any."""
    return [Rows(options.staging_location, options.identity.profile, task) for task in tasks or [()]]


def _retain(staged: StagedLog, committed: Position, retention_s: float) -> None:
    try:
        staged.retain(committed, retention_s)
    except Exception as error:  # noqa: BLE001  old segments cost money, not rows: the next commit tries again
        log.warning("old segments stay for now: %s", error)


def _unwind_at_termination() -> None:
    """Spark ends this process with SIGTERM, whose default ends it amid receives. This way the main thread unwinds, and
    the receiver drains."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
