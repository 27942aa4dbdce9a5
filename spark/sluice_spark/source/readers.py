"""Spark's readers, bounded and streaming: they translate Spark's calls for the staged log and the receiver.

Readers make no decisions. A reader lives in Spark's driver-side Python process. Method `read` runs in executors, on an
unpickled copy of the reader, which never starts a receiver. The same code serves every Spark version from 4.0 on:
`latestOffset` accepts the arguments of 4.2, and newer interfaces are base classes if they can be imported.
"""

import importlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from sluice_spark.log.bad_records import count_errors, remove_error_counts
from sluice_spark.log.notifications import NotificationDeduplicator
from sluice_spark.log.planning import Offset, Position, ReadLimit, find_batch_end
from sluice_spark.log.staging import StagedLog
from sluice_spark.options import Options, build_client_factory
from sluice_spark.source.drain import count_messages
from sluice_spark.source.reading import TaskReader, build_partitions
from sluice_spark.source.receiver import Receiver
from sluice_spark.sqs.client import VISIBLE
from sluice_spark.workers import limit_memory

log = logging.getLogger(__name__)

RETAIN_EVERY_S = 60.0
AVAILABLE_EVERY_S = 0.1  # how often an `availableNow` run looks for staged messages

try:  # Spark 4.2 and later have these classes.
    _newer: Any = importlib.import_module("pyspark.sql.streaming.datasource")
except ImportError:
    _newer = None
_TriggerAvailableNow: Any = _newer.SupportsTriggerAvailableNow if _newer else object


class SqsStreamReader(TaskReader, DataSourceStreamReader, _TriggerAvailableNow):
    """A streaming reader. A background receiver fills the staged log for the reader."""

    def __init__(self, options: Options) -> None:
        limit_memory()
        super().__init__(options)
        self._staged: StagedLog | None = None
        self._receiver: Receiver | None = None
        self._end = Position(0)
        self._last: Mapping[str, Any] | None = None  # the newest offset that Spark knows
        self._available_now = False
        self._retained_at = 0.0

    def __reduce__(self) -> tuple[type["SqsStreamReader"], tuple[Options]]:
        """Pickle only the options."""
        return type(self), (self._options,)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name, 4.2 and later
        """Make this run end after as many messages as the queues hold now, or when the queues are empty."""
        self._available_now = True

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  Spark's name, 4.2 and later
        """Return no read limit, because the source applies its own limits on every version of Spark."""
        return _newer.ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the offset of the oldest retained segment, so that a new query gets uncommitted messages."""
        start = StagedLog(self._options.open_store()).find_oldest_position()
        return self._ensure_receiver(start).log.offset(start).json()

    def latestOffset(  # noqa: N802  Spark's name
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return the end of the next batch, within the limits. Only an `availableNow` run waits for messages.

        Before version 4.2 Spark passes no start. The start is then the last returned end, which Spark has committed by
        now. Raises the error that ended the receiver, InvalidOffset, and the log's errors.
        """
        start_offset = start if start is not None else self._last
        offset = Offset.parse(start_offset) if start_offset is not None else None
        position = offset.position if offset else self._end
        staged = self._ensure_receiver(position)
        assert self._receiver is not None  # noqa: S101  tells mypy what _started did
        self._receiver.check()
        self._receiver.record_committed(position)
        while self._available_now and not staged.log.count_backlog(position).messages and self._receiver.is_running:
            self._receiver.join(AVAILABLE_EVERY_S)
            self._receiver.check()
        view = staged.log
        # Spark can pass a read limit, which is combined with the limits in the options.
        admission = self._options.read_limit.combine(ReadLimit(messages=getattr(limit, "max_rows", None)))
        self._end = find_batch_end(view, position, admission)
        self._receiver.record_planned(self._end)
        if start_offset is not None and self._end == position:
            return dict(start_offset)  # Spark takes a changed offset for new data.
        end = view.offset(self._end)
        if offset and not self._options.bodies.keeps_bodies_as_received:  # not yet this batch's
            errors = offset.errors + count_errors(self._options.open_store(), offset.errors_counted_to, position)
            end = replace(end, errors=errors, errors_counted_to=position)
        self._last = end.json()
        return dict(self._last)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name, 4.2 and later
        """Return the end of the staged log, so that the query's progress shows how far behind it is."""
        view = self._staged.log if self._staged else None
        return view.offset(view.end).json() if view else None

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Divide the rows between two offsets among tasks.

        At a restart Spark 4.0 and 4.1 call this method with two equal offsets, to pass the query's start.
        """
        first, last = Offset.parse(start).position, Offset.parse(end).position
        staged = self._ensure_receiver(first)
        if self._last is None or last >= self._end:
            self._end, self._last = last, end
        view = staged.log
        if first != last and first.segment < view.first:  # An earlier query planned the batch.
            view = StagedLog(self._options.open_store()).read_log(first)
        return build_partitions(self._options, view.list_ranges(first, last))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Record that Spark has committed a batch. Once a minute, remove old segments in the background."""
        offset = Offset.parse(end)
        staged = self._ensure_receiver(offset.position)
        staged.forget_before(offset.position)
        if time.monotonic() - self._retained_at > RETAIN_EVERY_S:
            self._retained_at = time.monotonic()
            threading.Thread(target=self._remove_old, args=(staged, offset.position), daemon=True).start()

    def stop(self) -> None:
        """Stop the receiver, which drains in the background; afterwards the process ends."""
        if self._receiver:
            if threading.current_thread() is threading.main_thread():
                # Spark can send SIGTERM again, which would end the process before the receiver has drained.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._receiver.stop()

    def _drain(self) -> None:
        self.stop()
        if self._receiver:
            self._receiver.join()

    def _ensure_receiver(self, start: Position) -> StagedLog:
        if self._staged is None:
            staged = open_writable_log(self._options)
            staged.take_over(start)
            # An `availableNow` run takes as many messages as are in the queues now, even while producers still send.
            waiting = count_messages(self._options, VISIBLE) if self._available_now else 0
            enough = ReadLimit(messages=waiting or None)
            self._receiver = _create_receiver(self._options, staged, until_empty=self._available_now, enough=enough)
            self._receiver.start(start)
            self._end, self._staged = start, staged
            # Spark ends this process by closing its socket, or with SIGTERM, which by default would interrupt receives.
            # The main thread exits. The receiver must drain before Python closes the thread pools that staging needs.
            # Functions of module `atexit` are called only after that.
            threading._register_atexit(self._drain)  # type: ignore[attr-defined]  # noqa: SLF001  as said
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, _exit_once)
        return self._staged

    def _remove_old(self, staged: StagedLog, committed: Position) -> None:
        store, retention_s = self._options.open_store(), self._options.retention_s
        try:
            staged.remove_old_segments(committed, retention_s)
            remove_error_counts(store, committed, before_s=time.time() - retention_s)
        except Exception as error:  # noqa: BLE001  old segments cost money, not rows: the next commit tries again
            log.warning("old segments stay for now: %s", error)


class SqsReader(TaskReader, DataSourceReader):
    """A bounded reader. Method `partitions` receives the messages, on the driver.

    A retried task reads staged messages, and receives no others.
    """

    def partitions(self) -> Sequence[InputPartition]:
        """Receive and stage until the queues are empty or a limit is reached. Each Spark action does so once.

        All received messages are read, also the few above the limits that receives in flight can bring.
        """
        staged = open_writable_log(self._options)
        if not self._options.queue_urls:
            view = staged.read_log()
            return build_partitions(self._options, view.list_ranges(Position(view.first), view.end))
        start = staged.end()
        staged.take_over(start)
        receiver = _create_receiver(self._options, staged, until_empty=True, enough=self._options.read_limit)
        receiver.start(staged.log.end)
        receiver.join()
        receiver.check()
        return build_partitions(self._options, staged.log.list_ranges(start, staged.log.end))


def _exit_once(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def open_writable_log(options: Options) -> StagedLog:
    """Open the staged log for writing. With envelope `s3` the log stages each record of S3's notifications once."""
    envelopes = options.bodies.envelopes
    notified = NotificationDeduplicator(envelopes, options.s3) if envelopes[-1:] == ("s3",) else None
    return StagedLog(options.open_store(), notified)


def _create_receiver(options: Options, staged: StagedLog, *, until_empty: bool, enough: ReadLimit) -> Receiver:
    """Create a receiver. Raises InvalidOption if the queues' region is unknown or no credentials are found."""
    return Receiver(
        staged,
        build_client_factory(options, 2 * options.connections),  # Half of the connections delete.
        options,
        until_empty=until_empty,
        enough=enough,
    )
