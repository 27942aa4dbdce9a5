"""Job *land*: moves each message once from queues to table `messages`, or to the quarantine if it is unreadable.

A batch is written in one pass, or in two if it has bad rows. If the table can't hold a row, the batch is written in
parts to find that row, which goes to the quarantine. Each of the two tables takes a batch once, identified by the
query's id and the batch's number. If the job is killed between two steps, Spark runs the batch again, which adds only
the missing rows. Therefore checkpoint, staging location and tables belong together.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

from sluice_jobs.arguments import LATE_DAYS_DEFAULT, TRIGGER_SECONDS_DEFAULT
from sluice_jobs.landing import NO_EXTRAS, ExtraColumns, classify_rows, messages_layout, quarantine_layout
from sluice_jobs.session import await_query, handle_stop_signals, stop_before, suppress_stop_error
from sluice_jobs.table_log import Transaction
from sluice_jobs.table_schemas import MESSAGES, QUARANTINE, REASON
from sluice_jobs.tables import ParquetTable, Table, open_table
from sluice_spark.metrics.listener import MetricsListener, observe_metrics
from sluice_spark.metrics.measures import emf_lines
from sluice_spark.source.drain import drain

log = logging.getLogger(__name__)

QUERY_NAME = "land"
MAX_REFUSED = 10  # maximum number of refused rows of a batch; with more, the table fails
QUERY_ID = "sql.streaming.queryId"  # Spark sets this property for each batch; restarts keep the id


@dataclass(frozen=True, slots=True, kw_only=True)
class LandArguments:
    """Arguments of `land`. Locations have no trailing slash; `source` holds the `sqs` source's options by name."""

    source: dict[str, str]
    checkpoint: str
    tables: str
    table_format: str
    quarantine: str
    trigger_seconds: float = TRIGGER_SECONDS_DEFAULT
    drain: bool = False
    late_days: int = LATE_DAYS_DEFAULT
    columns: Mapping[str, str] = field(default_factory=dict)  # column types by attribute name
    metrics: str | None = None  # CloudWatch namespace of the metrics; None writes no metrics

    @property
    def extra_columns(self) -> ExtraColumns:
        """The optional columns that the arguments add to table `messages`."""
        return ExtraColumns(envelope="envelope" in self.source, attributes=self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedTotals:
    """Numbers of rows and batches that one run of the job has added. `landed` doesn't include `late` rows."""

    landed: int = 0
    quarantined: int = 0
    late: int = 0
    batches: int = 0

    def plus(self, other: "LandedTotals") -> "LandedTotals":
        """Return the sum of both totals."""
        return LandedTotals(**{name: number + getattr(other, name) for name, number in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class LandResult:
    """The result of a run. `interrupted` means that SIGTERM ended the run, perhaps before the queues were empty."""

    totals: LandedTotals
    interrupted: bool


class BatchWriter:
    """Writes batches: Spark's `foreachBatch` function. Adds to `totals`; no batch begins after `stopping` is set."""

    def __init__(
        self,
        messages: Table,
        quarantine: Table,
        late_days: int,
        landed: Callable[[int], None] = lambda _: None,
        extras: ExtraColumns = NO_EXTRAS,
    ) -> None:
        self._messages, self._quarantine, self._late_days, self._landed = messages, quarantine, late_days, landed
        self._extras = extras
        self.totals = LandedTotals()
        self.stopping = threading.Event()

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write the batch to table `messages` and the quarantine; the rows are durable when this method returns."""
        if self.stopping.is_set():
            stop_before(number, batch.sparkSession)
        query = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        self.totals = self.totals.plus(self._write(batch, Transaction(app_id=query, version=number)))
        self._landed(number)

    def _write(self, batch: DataFrame, transaction: Transaction) -> LandedTotals:
        rows = classify_rows(batch, late_days=self._late_days, extra_columns=self._extras)
        try:
            return self._append(rows, transaction)
        except Exception:
            reasons = find_refused_rows(rows, self._messages) if isinstance(self._messages, ParquetTable) else {}
            if not reasons:
                raise
        pairs = [F.lit(text) for pair in reasons.items() for text in pair]
        rows = rows.withColumn(REASON, F.coalesce(REASON, F.create_map(*pairs)[F.col("message_id")]))
        # The quarantine is written first: if the run is killed now, the next run finds the refused rows again.
        self._quarantine.append(rows.where(F.col(REASON).isNotNull()), transaction)
        return self._append(rows, transaction)

    def _append(self, rows: DataFrame, transaction: Transaction) -> LandedTotals:
        bad, late = F.col(REASON).isNotNull(), F.col("late")
        counts = Observation()
        watched = rows.observe(
            counts,
            F.count_if(~bad & ~late).alias("landed"),
            F.count_if(bad).alias("quarantined"),
            F.count_if(~bad & late).alias("late"),
        )
        if not self._messages.append(watched.where(~bad).drop(REASON), transaction):
            # An earlier run added the messages. The quarantine ignores the bad rows if it has this batch.
            self._quarantine.append(rows.where(bad), transaction)
            return LandedTotals(batches=1)
        totals = LandedTotals(**counts.get, batches=1)
        if totals.quarantined:
            log.warning(
                "batch %d: %d unreadable messages were moved to the quarantine", transaction.version, totals.quarantined
            )
            self._quarantine.append(rows.where(bad), transaction)
        return totals


def find_refused_rows(rows: DataFrame, table: ParquetTable) -> dict[str, str]:
    """Find the rows that the table can't hold. Returns the reason for each row, by message id.

    The search writes halves of the rows, and halves of a refused half. The result is empty if the table can't be
    written at all, or if it refuses more than MAX_REFUSED rows.
    """

    def try_write(part: DataFrame) -> str | None:
        try:
            table.check(part)
        except Exception as error:  # noqa: BLE001  of Spark, the store, the file format or the log, as the row may be
            return f"the table can't hold it: {type(error).__name__}: {error}".partition("\n")[0]
        return None

    good = rows.where(F.col(REASON).isNull()).drop(REASON)
    if try_write(good.limit(0)) is not None:
        return {}
    reasons = dict[str, str]()
    parts = [sorted(row.message_id for row in good.select("message_id").collect())]
    while parts and len(reasons) <= MAX_REFUSED:
        ids = parts.pop()
        reason = try_write(good.where(F.col("message_id").between(ids[0], ids[-1]))) if ids else None
        if reason is None:
            continue
        if ids[0] == ids[-1]:
            reasons[ids[0]] = reason
        else:
            parts += [ids[len(ids) // 2 :], ids[: len(ids) // 2]]
    return reasons if len(reasons) <= MAX_REFUSED else {}


def land(spark: SparkSession, landing: LandArguments, landed: Callable[[int], None] = lambda _: None) -> LandResult:
    """Run until SIGTERM, or with `drain` until the queues are empty. Raises the query's error if it fails.

    On SIGTERM the running batch is finished, and no other batch begins. `landed` is called with a batch's number after
    the tables have the batch, and before Spark commits the batch.
    """
    batches = BatchWriter(
        open_table(landing.table_format, landing.tables, MESSAGES, messages_layout(landing.extra_columns)),
        ParquetTable(f"{landing.quarantine}/{QUARANTINE}", quarantine_layout()),
        landing.late_days,
        landed,
        landing.extra_columns,
    )
    received = spark.readStream.format("sqs").options(**landing.source).load()
    if landing.metrics is not None:
        spark.streams.addListener(MetricsListener(emf_lines(landing.metrics)))
        received = observe_metrics(received)
    writer = received.writeStream.queryName(QUERY_NAME).option("checkpointLocation", landing.checkpoint)
    writer = writer.foreachBatch(batches)
    with handle_stop_signals(batches.stopping):
        if landing.drain:
            with suppress_stop_error():
                drain(writer.trigger(processingTime="0 seconds"), landing.source)
        else:
            await_query(writer.trigger(processingTime=f"{landing.trigger_seconds} seconds").start(), batches.stopping)
    return LandResult(totals=batches.totals, interrupted=batches.stopping.is_set())
