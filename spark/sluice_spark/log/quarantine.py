"""Bad records in a place of their own, one Parquet file for each slice, or piece of it, that has some.

A task tried again writes the same file, once. They lie in the location itself, so that this can be read as a table.
"""

import logging

import pyarrow as pa

from sluice_spark.errors import SegmentTaken
from sluice_spark.log.planning import Slice
from sluice_spark.log.store import Store

log = logging.getLogger(__name__)


def quarantined(store: Store, part: Slice, rows: pa.RecordBatch, share: int = 0, piece: int = 0) -> None:
    """Durable when it returns, before the task's good rows are used. The name says how many there are.

    `piece`: of a slice whose rows come in several.
    """
    if not rows.num_rows:
        return
    import pyarrow.parquet as pq  # noqa: PLC0415  5 MiB, which a task needs and a driver doesn't

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([rows]), sink)
    within = f"{share}.{piece}" if piece else f"{share}"
    name = f"{part.number:020d}-{part.low}-{part.high}-{within}-{rows.num_rows}.parquet"
    try:
        store.publish(name, sink.getvalue())
    except SegmentTaken:
        return  # an earlier try of this task wrote the same rows
    log.warning("%d bad records of segment %d are in %s", rows.num_rows, part.number, name)
