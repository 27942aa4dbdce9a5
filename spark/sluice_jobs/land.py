"""*land*: from queues to table `messages`, each message once; what can't be read to the quarantine, with its reason.

A batch is written in one pass, a second one only where some of its rows are bad. Messages and quarantine take a batch
by its query's id and its number, each by itself: killed between any two steps, the batch that Spark runs again
completes what is missing, and adds nothing twice. So checkpoint, staging location and tables belong together.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

from sluice_jobs.arguments import LATE_DAYS_DEFAULT, TRIGGER_SECONDS_DEFAULT
from sluice_jobs.landing import NO_EXTRAS, Extras, classified, messages_layout, quarantine_layout
from sluice_jobs.session import asked_to_stop, awaited, stop_before, stopped_on_purpose
from sluice_jobs.table_log import Transaction
from sluice_jobs.table_schemas import MESSAGES, QUARANTINE, REASON
from sluice_jobs.tables import ParquetTable, Table, open_table
from sluice_spark.metrics.listener import MetricsListener, observed
from sluice_spark.metrics.measures import emf_lines
from sluice_spark.source.drain import drain

log = logging.getLogger(__name__)

QUERY_NAME = "land"
QUERY_ID = "sql.streaming.queryId"  # Spark's own, set for each batch: it outlives restarts, as the checkpoint holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """What `land` is told. Locations without an end's slash; the source's own options by its names."""

    source: dict[str, str]
    checkpoint: str
    tables: str
    table_format: str
    quarantine: str
    trigger_seconds: float = TRIGGER_SECONDS_DEFAULT
    drain: bool = False
    late_days: int = LATE_DAYS_DEFAULT
    columns: Mapping[str, str] = field(default_factory=dict)  # of attributes, with their types
    metrics: str | None = None  # the namespace

    @property
    def extras(self) -> Extras:
        """The columns that the messages get beside those of all."""
        return Extras(envelope="envelope" in self.source, attributes=self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedTotals:
    """Rows and batches that this run has put in the tables. `landed` are in time, `late` not."""

    landed: int = 0
    quarantined: int = 0
    late: int = 0
    batches: int = 0

    def plus(self, other: "LandedTotals") -> "LandedTotals":
        """Add up both."""
        return LandedTotals(**{name: number + getattr(other, name) for name, number in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """What a run did. `interrupted`: SIGTERM ended it, perhaps before the queues were empty."""

    totals: LandedTotals
    interrupted: bool


class Batches:
    """What Spark calls with each batch. `totals` grows; once `stopping` is set no further batch begins."""

    def __init__(
        self,
        messages: Table,
        quarantine: Table,
        late_days: int,
        landed: Callable[[int], None] = lambda _: None,
        extras: Extras = NO_EXTRAS,
    ) -> None:
        """`landed`: see `land`."""
        self._messages, self._quarantine, self._late_days, self._landed = messages, quarantine, late_days, landed
        self._extras = extras
        self.totals = LandedTotals()
        self.stopping = threading.Event()

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Durable when it returns."""
        if self.stopping.is_set():
            stop_before(number, batch.sparkSession)
        query = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        self.totals = self.totals.plus(self._written(batch, Transaction(app_id=query, version=number)))
        self._landed(number)

    def _written(self, batch: DataFrame, transaction: Transaction) -> LandedTotals:
        rows = classified(batch, late_days=self._late_days, extras=self._extras)
        bad, late = F.col(REASON).isNotNull(), F.col("late")
        counts = Observation()
        watched = rows.observe(
            counts,
            F.count_if(~bad & ~late).alias("landed"),
            F.count_if(bad).alias("quarantined"),
            F.count_if(~bad & late).alias("late"),
        )
        if not self._messages.append(watched.where(~bad).drop(REASON), transaction):
            # an earlier run was killed after this: whether its bad rows are safe only their own table knows
            self._quarantine.append(rows.where(bad), transaction)
            return LandedTotals(batches=1)
        found = LandedTotals(**counts.get, batches=1)
        if found.quarantined:
            log.warning("batch %d: %d unreadable messages, in the quarantine", transaction.version, found.quarantined)
            self._quarantine.append(rows.where(bad), transaction)
        return found


def land(spark: SparkSession, landing: Landing, landed: Callable[[int], None] = lambda _: None) -> Landed:
    """Run until SIGTERM, or with `drain` until the queues are empty. Raises what ended the query otherwise.

    On SIGTERM the running batch is finished, and no other begins. `landed` is called with a batch's number once the
    tables have it, before Spark knows.
    """
    batches = Batches(
        open_table(landing.table_format, landing.tables, MESSAGES, messages_layout(landing.extras)),
        ParquetTable(f"{landing.quarantine}/{QUARANTINE}", quarantine_layout()),
        landing.late_days,
        landed,
        landing.extras,
    )
    received = spark.readStream.format("sqs").options(**landing.source).load()
    if landing.metrics is not None:
        spark.streams.addListener(MetricsListener(emf_lines(landing.metrics)))
        received = observed(received)
    writer = received.writeStream.queryName(QUERY_NAME).option("checkpointLocation", landing.checkpoint)
    writer = writer.foreachBatch(batches)
    with asked_to_stop(batches.stopping):
        if landing.drain:
            with stopped_on_purpose():
                drain(writer.trigger(processingTime="0 seconds"), landing.source)
        else:
            awaited(writer.trigger(processingTime=f"{landing.trigger_seconds} seconds").start(), batches.stopping)
    return Landed(totals=batches.totals, interrupted=batches.stopping.is_set())
