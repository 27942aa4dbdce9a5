"""A listener that turns a streaming query's progress into metrics, and the observation that adds to the progress.

The listener runs in the program that started the query. It makes no call to SQS: all figures are from the progress and
from the receiver's status in the staging location.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.streaming.listener import StreamingQueryListener

from sluice_spark.errors import LogError
from sluice_spark.formats.bodies import REASON
from sluice_spark.log.latest import ReceiverStatus, read_status
from sluice_spark.log.store import open_store
from sluice_spark.metrics.measures import (
    ERRORS,
    OBSERVATION,
    RECEIVED_AT,
    SENT_AT,
    ProgressSample,
    QueryMetrics,
    Reading,
    convert_receiver_status,
    emf_lines,
    measure_idle,
    measure_trigger,
    parse_offset,
)

log = logging.getLogger(__name__)

Key = tuple[str, int]  # the query's id, and the source's index in the query


def observe_metrics(messages: DataFrame) -> DataFrame:
    """Add an observation of bad records, and of the last message's times, to a frame for `MetricsListener`.

    Call this function once in a query, where the frame still has all of the source's columns.
    """
    bad = F.col(REASON).isNotNull() if REASON in messages.columns else F.lit(False)  # noqa: FBT003  a literal column
    return messages.observe(
        OBSERVATION,
        F.count(F.when(bad, 1)).alias(ERRORS),
        F.unix_millis(F.max("sent_at")).alias(SENT_AT),
        F.unix_millis(F.max_by("first_received_at", "sent_at")).alias(RECEIVED_AT),
    )


class MetricsListener(StreamingQueryListener):
    """Emits a query's metrics as EMF lines on stdout, or by `emit`. Register with `spark.streams.addListener`.

    Calls `emit` for each SQS source, at each progress event and each idle event of the query.
    """

    def __init__(
        self,
        emit: Callable[[QueryMetrics], None] | None = None,
        *,
        staging_location: str | None = None,
        profile: str | None = None,
    ) -> None:
        """Create the listener. With `staging_location` of a query it adds the metrics of the query's receiver."""
        self._emit = emit or emf_lines()
        self._store = open_store(staging_location, profile) if staging_location else None
        self._readings: dict[Key, Reading] = {}
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  Spark's name
        """Store the started query's name."""
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  Spark's name
        """Emit metrics after a trigger, with or without rows."""
        progress = event.progress
        query = str(progress.id)
        self._names.setdefault(query, progress.name or query)
        row = (progress.observedMetrics or {}).get(OBSERVATION)
        for number, source in enumerate(progress.sources):
            end = parse_offset(source.endOffset)
            if end is None:
                continue
            started_ms = int(datetime.fromisoformat(progress.timestamp).timestamp() * 1000)
            sample = ProgressSample(
                started_ms=started_ms,
                ended_ms=started_ms + int((progress.durationMs or {}).get("triggerExecution", 0)),
                start=parse_offset(source.startOffset),
                end=end,
                latest=parse_offset(source.latestOffset),
                observed=row.asDict() if row is not None else None,
            )
            reading, values = measure_trigger(sample, self._readings.get((query, number)))
            self._emit_metrics((query, number), reading, values)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802  Spark's name
        """Emit metrics while no rows arrive."""
        query = str(event.id)
        for key, before in list(self._readings.items()):
            if key[0] == query:
                at_ms = int(datetime.fromisoformat(event.timestamp).timestamp() * 1000)
                self._emit_metrics(key, *measure_idle(at_ms, before))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  Spark's name
        """Forget the query, which has ended."""
        query = str(event.id)
        self._names.pop(query, None)
        self._readings = {key: reading for key, reading in self._readings.items() if key[0] != query}

    def _emit_metrics(self, key: Key, reading: Reading, values: Mapping[str, float]) -> None:
        self._readings[key] = reading
        query, source = key
        status, more = self._read_status()
        values, name = {**values, **more}, self._names.get(query, query)
        metrics = QueryMetrics(query=name, source=source, at_ms=reading.at_ms, values=values)
        self._emit(replace(metrics, state=status.state, reason=status.reason) if status else metrics)

    def _read_status(self) -> tuple[ReceiverStatus | None, Mapping[str, float]]:
        """Read the receiver's newest status, and return its metrics."""
        if self._store is None:
            return None, {}
        try:
            status = read_status(self._store)
        except (LogError, OSError) as error:
            log.warning("what the receiver does isn't known: %s", error)
            return None, {}
        return status, {} if status is None else convert_receiver_status(status)
