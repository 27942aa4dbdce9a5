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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from sluice_spark import bad_records
from sluice_spark.access import credentials_of, region_of, resolved_endpoint
from sluice_spark.client import SqsClient
from sluice_spark.depth import Depth
from sluice_spark.dispatching import Dispatcher, adopted
from sluice_spark.drain import visible
from sluice_spark.errors import InvalidOption
from sluice_spark.executors import Order, segment, task_intake
from sluice_spark.fifo import Share, is_fifo, shared
from sluice_spark.formats import ENVELOPE, REASON, VALUE, added_columns, deserialised, file_columns, parser, split
from sluice_spark.notified import Notified
from sluice_spark.offsets import Offset, Position
from sluice_spark.options import WAIT_LIMIT_S, Options, parsed
from sluice_spark.planning import ROWS_PER_TASK, Admission, Extent, Slice, admitted, sliced
from sluice_spark.quarantine import quarantined
from sluice_spark.receiver import Intake, Receiver
from sluice_spark.s3_files import check_columns
from sluice_spark.s3_objects import fetched, open_objects
from sluice_spark.s3_rows import object_rows
from sluice_spark.segments import SPARK_SCHEMA, rows_of
from sluice_spark.sink import batch_writer, stream_writer
from sluice_spark.staging import StagedLog, batches
from sluice_spark.store import Store, open_store
from sluice_spark.workers import spare_pyspark_zip

log = logging.getLogger(__name__)

NAME = "sqs"
BATCH_WAIT_S = 2  # a bounded read ends with an empty long poll: not the twenty seconds that suit a stream
RETAIN_EVERY_S = 60.0
OBJECTS_PER_TASK = 20  # messages, where a row names an object to read: a GET takes some 30 ms
AVAILABLE_EVERY_S = 0.1  # how soon a run of `availableNow` sees that something is staged

try:  # Spark 4.2 and later
    _newer: Any = importlib.import_module("pyspark.sql.streaming.datasource")
except ImportError:
    _newer = None

# Spark's timestamps are UTC in Arrow: newer versions have to be told, older ones know no other
_UTC: Mapping[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}


class Rows(InputPartition):
    """Rows of the log for one task, or of a segment that the task is to receive. Names a place; never a key."""

    def __init__(
        self,
        location: str,
        profile: str | None,
        slices: Sequence[Slice],
        share: Share | None = None,
        order: Order | None = None,
    ) -> None:
        super().__init__(None)
        self.location, self.profile, self.slices, self.share, self.order = location, profile, slices, share, order


class SqsDataSource(DataSource):
    """Reads and writes of format `sqs`, bounded and streaming. Register with `sluice_spark.register(spark)`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> str:
        """The columns; the first thing that Spark asks, so options are checked here."""
        options = parsed(self.options)
        added = file_columns(options.deserialisation) if options.files.read else added_columns(options.deserialisation)
        return ", ".join([SPARK_SCHEMA, *added])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A bounded read: of the queues, or without `queueUrl` of the log that is retained."""
        options = parsed(self.options)
        if options.after_commit:
            raise InvalidOption("deleteMode", "a batch read has no commit: staged, or none")
        if options.executors and options.queue_urls:
            raise InvalidOption(
                "mode", "a batch read ends when the queues are empty, on which tasks can't agree: driver"
            )
        check_columns(options.files, _arrow(schema, VALUE))
        return SqsReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """An unbounded read of the queues."""
        options = parsed(self.options)
        if not options.queue_urls:
            raise InvalidOption("queueUrl", "missing: a stream needs at least one")
        check_columns(options.files, _arrow(schema, VALUE))
        return PlannedStreamReader(options, schema) if options.executors else StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001  Spark's signature
        """A bounded write to queues."""
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802  Spark's
        """An unbounded write to queues."""
        return stream_writer(self.options, schema, overwrite=overwrite)


class _Reading:
    """What executors do, the same for a batch and a stream."""

    _options: Options
    _schema: StructType | None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The partition's rows, the same at every call."""
        assert isinstance(partition, Rows)  # noqa: S101  tells mypy what our own partitions() made
        spare_pyspark_zip()
        store = open_store(partition.location, partition.profile)
        if partition.order:
            rows = rows_of(segment(partition.order, store, _sqs(self._options), task_intake(self._options)))
            part = Slice(partition.order.number, 0, rows.num_rows)
            for batch in rows.replace_schema_metadata(None).to_batches():
                yield from self._deserialised(part, batch, partition)
        for part in partition.slices:
            for batch in batches(store, [part]):
                mine = shared(batch, partition.share) if partition.share else batch
                yield from self._deserialised(part, mine, partition)

    def _deserialised(self, part: Slice, batch: pa.RecordBatch, partition: Rows) -> Iterator[pa.RecordBatch]:
        wanted = self._options.deserialisation
        if wanted.raw:
            yield batch
            return
        if self._options.files.read:
            yield from self._of_objects(part, batch, partition)
            return
        rows = deserialised(batch, wanted, self._options.s3, self._types(), parser(wanted))
        index = partition.share.index if partition.share else 0
        errors = rows.num_rows - rows.column(REASON).null_count
        bad_records.noted(open_store(partition.location, partition.profile), part, errors, index)
        if wanted.quarantine:
            good, bad = split(rows)
            quarantined(open_store(wanted.quarantine, partition.profile), part, bad, index)
            rows = good
        yield rows

    def _of_objects(self, part: Slice, batch: pa.RecordBatch, partition: Rows) -> Iterator[pa.RecordBatch]:
        """A row for each record of the objects, batch by batch; the quarantine has a file for each of these."""
        options, errors = self._options, 0
        wanted, index = options.deserialisation, partition.share.index if partition.share else 0
        get = partial(fetched, _objects(options), limit=options.files.object_bytes)
        kind = self._types()[VALUE]
        found = object_rows(batch, wanted.envelopes, options.s3, files=options.files, kind=kind, get=get)
        for piece, rows in enumerate(found):
            errors += rows.num_rows - rows.column(REASON).null_count
            if wanted.quarantine:
                good, bad = split(rows)
                quarantined(open_store(wanted.quarantine, partition.profile), part, bad, index, piece)
                yield good
            else:
                yield rows
        bad_records.noted(open_store(partition.location, partition.profile), part, errors, index)

    def _types(self) -> Mapping[str, pa.DataType]:
        added = [name for name in (ENVELOPE, VALUE, REASON) if self._schema and name in self._schema.names]
        return {name: _arrow(self._schema, name) for name in added} if self._schema else {}


class SqsReader(_Reading, DataSourceReader):
    """Receives in `partitions`, on the driver: a task that is tried again reads what was staged, and receives
    nothing."""

    def __init__(self, options: Options, schema: StructType | None = None) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Receives until the queues are empty or the limits reached, and stages; each action of a plan does so once.

        All that was received is read: the limits are where receiving ends, a little is on its way then.
        """
        staged = _log(self._options)
        if not self._options.queue_urls:
            view = staged.view()
            return _rows(self._options, _tasks(self._options, view.between(Position(view.first), view.end)))
        start = staged.end()
        staged.take_over(start)
        receiver = _receiver(self._options, staged, until_empty=True, enough=self._options.admission)
        receiver.start(staged.log.end)
        receiver.join()
        receiver.check()
        return _rows(self._options, _tasks(self._options, staged.log.between(start, staged.log.end)))


class SqsStreamReader(_Reading, DataSourceStreamReader):
    """Lives in Spark's driver-side Python process; `read` runs in the executors', on a pickled copy that has not
    started."""

    def __init__(self, options: Options, schema: StructType | None = None) -> None:
        self._options, self._schema = options, schema
        self._staged: StagedLog | None = None
        self._receiver: Receiver | None = None
        self._end = Position(0)
        self._last: Mapping[str, Any] | None = None  # the newest offset that Spark has
        self._available_now = False
        self._retained_at = 0.0

    def __getstate__(self) -> Mapping[str, Any]:
        """Only options and columns travel."""
        fresh = {"_staged": None, "_receiver": None, "_end": Position(0), "_last": None, "_retained_at": 0.0}
        return {"_options": self._options, "_schema": self._schema, "_available_now": False, **fresh}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """The oldest retained segment: what an earlier query staged and never committed is adopted."""
        store = open_store(self._options.staging_location, self._options.identity.profile)
        start = StagedLog(store).oldest()
        return self._started(start).log.offset(start).json()

    def latestOffset(  # noqa: N802  Spark's name
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """As far as is staged and admitted. Never waits for a message, but in a run of `availableNow`.

        Before 4.2 Spark says no start: then it is the last end that it was given, which it has committed by now.
        """
        given = start if start is not None else self._last
        offset = Offset.parse(given) if given is not None else None
        position = offset.position if offset else self._end
        staged = self._started(position, offset)
        assert self._receiver is not None  # noqa: S101  tells mypy what _started did
        self._receiver.check()
        self._receiver.committed(position)
        while self._available_now and not staged.log.backlog(position).messages and self._receiver.running:
            self._receiver.join(AVAILABLE_EVERY_S)
            self._receiver.check()
        view = staged.log
        self._end = admitted(view, position, self._admission(limit))
        self._receiver.consumed(self._end)
        if given is not None and self._end == position:
            return dict(given)  # to Spark another text is new data
        self._last = self._counted(view.offset(self._end), given, position).json()
        return dict(self._last)

    def _counted(self, end: Offset, given: Mapping[str, Any] | None, start: Position) -> Offset:
        """With the bad records before the batch's start: those of the batch itself its tasks have yet to find."""
        if given is None or self._options.deserialisation.raw:
            return end
        known = Offset.parse(given)
        store = open_store(self._options.staging_location, self._options.identity.profile)
        errors = known.errors + bad_records.between(store, known.errors_until, start)
        return replace(end, errors=errors, errors_until=start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name, 4.2 and later
        """This run ends: once as many messages are taken as the queues hold now, or when they are empty."""
        self._available_now = True

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name, 4.2 and later
        """As far as is staged: shows in the query's progress how far behind it is."""
        view = self._staged.log if self._staged else None
        return view.offset(view.end).json() if view else None

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  Spark's name, 4.2 and later
        """Our own limits apply by themselves, so that they do on every version."""
        return _newer.ReadAllAvailable()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The rows between. Spark 4.0 and 4.1 call this with twice the same offset at a restart, to say where it
        begins."""
        first, last = Offset.parse(start).position, Offset.parse(end).position
        staged = self._started(first, Offset.parse(start))
        if self._last is None or last >= self._end:
            self._end, self._last = last, end
        view = staged.log
        if first != last and first.segment < view.first:  # a batch planned before the place where we began
            view = StagedLog(open_store(self._options.staging_location, self._options.identity.profile)).view(first)
        return _rows(self._options, _tasks(self._options, view.between(first, last)))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark has written the batch; old segments may go."""
        offset = Offset.parse(end)
        position = offset.position
        staged = self._started(position, offset)
        staged.consumed(position)
        if time.monotonic() - self._retained_at > RETAIN_EVERY_S:
            self._retained_at = time.monotonic()
            store = open_store(self._options.staging_location, self._options.identity.profile)
            given = partial(staged.retain, position), store, position, self._options.retention_s
            threading.Thread(target=_retain, args=given, daemon=True).start()

    def stop(self) -> None:
        """Drains in the background; the process ends when that is done."""
        if self._receiver:
            self._receiver.stop()

    def _started(self, start: Position, known: Offset | None = None) -> StagedLog:
        if self._staged is None:
            staged = _log(self._options)
            staged.take_over(start, known)
            self._receiver = _receiver(self._options, staged, until_empty=self._available_now, enough=self._enough())
            self._receiver.start(start)
            self._end, self._staged = start, staged
            _unwind_at_termination()
        return self._staged

    def _enough(self) -> Admission:
        """What is in the queues at the start bounds a run of `availableNow`, while producers still send."""
        return Admission(messages=visible(self._options) or None) if self._available_now else Admission()

    def _admission(self, limit: Any) -> Admission:
        return _limited(self._options.admission, limit)


class ExecutorsStreamReader(_Reading, DataSourceStreamReader):
    """`mode=executors`: plans here, in Spark's driver-side Python process; `read`, in the executors', receives."""

    def __init__(self, options: Options, schema: StructType | None = None) -> None:
        self._options, self._schema = options, schema
        self._dispatcher: Dispatcher | None = None
        self._depth: Depth | None = None
        self._last: Mapping[str, Any] | None = None  # the newest offset that Spark has
        self._available_now = False
        self._retained_at = 0.0

    def __getstate__(self) -> Mapping[str, Any]:
        """Only options and columns travel."""
        fresh = {"_dispatcher": None, "_depth": None, "_last": None, "_available_now": False, "_retained_at": 0.0}
        return {"_options": self._options, "_schema": self._schema, **fresh}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """The oldest retained segment, as with `mode=driver`."""
        start = Offset(position=adopted(self._store()))
        self._started(start.position)
        self._last = start.json()
        return dict(self._last)

    def latestOffset(  # noqa: N802  Spark's name
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """After the segments that the next batch's tasks are to receive; `start` if the queues are empty.

        Never waits for a message. Its totals are of what lies before `start`: see `Offset.counted_until`.
        """
        given = start if start is not None else self._last
        known = Offset.parse(given) if given is not None else Offset(position=adopted(self._store()))
        end = self._started(known.position).planned(known, _limited(self._options.admission, limit))
        if end is None:
            return dict(given) if given is not None else known.json()
        if not self._options.deserialisation.raw:
            errors = known.errors + bad_records.between(self._store(), known.errors_until, known.position)
            end = replace(end, errors=errors, errors_until=known.position)
        self._last = end.json()
        return dict(self._last)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name, 4.2 and later
        """This run ends: once as many messages are taken as the queues hold now, or when they are empty."""
        self._available_now = True

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name, 4.2 and later
        """The last offset, with what the queues hold counted in: shows how far behind the query is."""
        if self._dispatcher is None or self._last is None:
            return None
        return self._dispatcher.pending(Offset.parse(self._last)).json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  Spark's name, 4.2 and later
        """Our own limits apply by themselves, so that they do on every version."""
        return _newer.ReadAllAvailable()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """A task for each planned segment, there or not.

        At a restart 4.0 and 4.1 first call this with twice the newest offset that they have, even if the batch that
        ends there is to be run again: nothing can be said of the log then.
        """
        first, last = Offset.parse(start).position, Offset.parse(end).position
        if self._last is None or last >= Offset.parse(self._last).position:
            self._last = end
        place = self._options.staging_location, self._options.identity.profile
        if first == last:
            return [Rows(*place, ())]
        tasks = self._started(first).tasks(first, last, self._options.admission)
        rows = [Rows(*place, slices) for slices in tasks.staged] + [Rows(*place, (), order=o) for o in tasks.orders]
        return rows or [Rows(*place, ())]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark has written the batch; old segments may go."""
        offset = Offset.parse(end)
        dispatcher = self._started(offset.position)
        if time.monotonic() - self._retained_at > RETAIN_EVERY_S:
            self._retained_at = time.monotonic()
            given = partial(dispatcher.retain, offset), self._store(), offset.position, self._options.retention_s
            threading.Thread(target=_retain, args=given, daemon=True).start()

    def stop(self) -> None:
        """Nothing is held here."""
        if self._depth:
            self._depth.stop()

    def _store(self) -> Store:
        return open_store(self._options.staging_location, self._options.identity.profile)

    def _started(self, start: Position) -> Dispatcher:
        if self._dispatcher is None:
            options = self._options
            self._depth = Depth(_sqs(options), options.queue_urls, deleting=options.delete)
            self._dispatcher = Dispatcher(
                self._store(), self._depth, start, rate_limit=options.rate_limit, ending=self._available_now
            )
        return self._dispatcher


_TriggerAvailableNow: Any = _newer.SupportsTriggerAvailableNow if _newer else object


class StreamReader(SqsStreamReader, _TriggerAvailableNow):
    """With what this version of Spark has in addition."""


class PlannedStreamReader(ExecutorsStreamReader, _TriggerAvailableNow):
    """As above."""


def _limited(own: Admission, limit: Any) -> Admission:
    """The options' limits, and a read limit that Spark asks for in addition."""
    asked = getattr(limit, "max_rows", None)
    return own if asked is None else Admission(messages=min(asked, own.messages or asked), size=own.size)


@lru_cache(maxsize=16)  # executors' workers are reused, and a session of botocore's takes its time
def _sqs(options: Options) -> Callable[[], SqsClient]:
    endpoint = resolved_endpoint(
        options.queue_urls[0], region=options.region, endpoint=options.endpoint, identity=options.identity
    )
    credentials = credentials_of(options.identity, region=endpoint.region)
    return lambda: SqsClient(endpoint, credentials, connections=options.connections)


def _receiver(options: Options, staged: StagedLog, *, until_empty: bool, enough: Admission) -> Receiver:
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
        after_commit=options.after_commit,
        until_empty=until_empty,
        rate_limit=options.rate_limit,
        enough_messages=enough.messages,
        enough_bytes=enough.size,
    )
    return Receiver(staged, lambda: SqsClient(endpoint, credentials, connections=2 * options.connections), intake)


def _log(options: Options) -> StagedLog:
    """To write: with what it takes to read no object twice."""
    notified = Notified(options.deserialisation.envelopes, options.s3) if options.files.read else None
    return StagedLog(open_store(options.staging_location, options.identity.profile), notified)


def _tasks(options: Options, parts: Sequence[tuple[Extent, int, int]]) -> Sequence[Sequence[Slice]]:
    return sliced(parts, OBJECTS_PER_TASK if options.files.read else ROWS_PER_TASK)


def _objects(options: Options) -> Any:
    region = options.region or (region_of(options.queue_urls[0]) if options.queue_urls else None)
    return open_objects(options.identity, region=region, endpoint=options.files.endpoint)


def _arrow(schema: StructType, name: str) -> pa.DataType:
    """Of no columns where there is none."""
    return to_arrow_type(schema[name].dataType, **_UTC) if name in schema.names else pa.struct([])


def _rows(options: Options, tasks: Sequence[Sequence[Slice]]) -> Sequence[InputPartition]:
    """At least one partition: 4.0 and 4.1 fail on a batch read without any. With FIFO queues each task looks at all
    rows, for its share of the groups: in order, and none in two tasks."""
    place = options.staging_location, options.identity.profile
    if any(is_fifo(url) for url in options.queue_urls) and len(tasks) > 1:
        whole = [part for task in tasks for part in task]
        return [Rows(*place, whole, Share(index, len(tasks))) for index in range(len(tasks))]
    return [Rows(*place, task) for task in tasks or [()]]


def _retain(segments: Callable[[float], int], store: Store, committed: Position, retention_s: float) -> None:
    try:
        segments(retention_s)
        bad_records.forget(store, committed, before=time.time() - retention_s)
    except Exception as error:  # noqa: BLE001  old segments cost money, not rows: the next commit tries again
        log.warning("old segments stay for now: %s", error)


def _unwind_at_termination() -> None:
    """Spark ends this process with SIGTERM, whose default ends it amid receives. This way the main thread unwinds, and
    the receiver drains."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
