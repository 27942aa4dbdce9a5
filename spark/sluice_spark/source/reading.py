"""The part of a bounded or streaming reader that runs in tasks: reads the staged log's rows and opens bodies."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sluice_spark.formats.bodies import REASON, open_rows, split_bad_rows
from sluice_spark.formats.payloads import PARALLEL_FETCHES, build_dereferencer, hide_size_attributes, split_by_pointers
from sluice_spark.formats.s3_objects import fetch_object
from sluice_spark.log.bad_records import quarantine, write_error_count
from sluice_spark.log.planning import SegmentExtent, Slice, divide_into_tasks
from sluice_spark.log.segments import SCHEMA
from sluice_spark.log.staging import read_slices
from sluice_spark.log.store import open_store
from sluice_spark.options import Options
from sluice_spark.source.fifo import GroupShare, is_fifo, select_group_share
from sluice_spark.workers import speed_up_tasks


class RowsPartition(InputPartition):
    """Rows of the staged log for one task."""

    def __init__(self, slices: Sequence[Slice] = (), share: GroupShare | None = None) -> None:
        super().__init__(None)
        self.slices, self.share = slices, share


class TaskReader:
    """The part of a reader that runs in executors. Bounded and streaming readers share it. Only options are pickled."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's rows, the same rows at every call. Raises the errors of the staged log and of S3."""
        assert isinstance(partition, RowsPartition)  # noqa: S101  tells mypy what our own partitions() made
        speed_up_tasks()
        store, share = self._options.open_store(), partition.share
        for part in partition.slices:
            part_batches = read_slices(store, [part])
            mine = (select_group_share(batch, share) for batch in part_batches) if share else part_batches
            yield from self._open_slice(part, mine, share)

    def _open_slice(
        self, part: Slice, batches: Iterable[pa.RecordBatch], share: GroupShare | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part of a segment, and count bad rows. If there is a quarantine, it gets the bad rows."""
        options, index, errors = self._options, share.index if share else 0, 0
        if options.bodies.keeps_bodies_as_received:
            yield from batches
            return
        # Each part of a segment has one count and one quarantine file, so its rows are combined into one batch.
        for batch in pa.Table.from_batches(batches, schema=SCHEMA).combine_chunks().to_batches():  # at most one batch
            for piece, rows in enumerate(self._iter_pieces(batch)):
                errors += rows.num_rows - rows.column(REASON).null_count
                if location := options.bodies.quarantine:
                    good, bad = split_bad_rows(rows)
                    quarantine(open_store(location, options.identity.profile), part, bad, index, piece)
                    yield good
                else:
                    yield rows
        write_error_count(options.open_store(), part, errors, index)

    def _iter_pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the opened rows: all at once, or in pieces if payloads must be fetched from S3."""
        options, bodies = self._options, self._options.bodies
        if not bodies.payload_buckets:
            yield open_rows(batch, bodies, options.s3)
            return
        get = partial(fetch_object, options.create_s3_client(), limit=options.payload_limit)
        follow = build_dereferencer(get, bodies.payload_buckets)
        with ThreadPoolExecutor(PARALLEL_FETCHES) as pool:
            for some in split_by_pointers(batch):
                yield hide_size_attributes(open_rows(some, bodies, options.s3, dereference=follow, map_bodies=pool.map))


def build_partitions(options: Options, parts: Sequence[tuple[SegmentExtent, int, int]]) -> Sequence[InputPartition]:
    """Divide rows among tasks. Returns at least one partition, because Spark 4.0 and 4.1 fail on a batch without one.

    With FIFO queues each task reads all rows and selects its share of the message groups, so that groups stay in order.
    """
    tasks = divide_into_tasks(parts)
    if any(is_fifo(url) for url in options.queue_urls) and len(tasks) > 1:
        whole = [part for task in tasks for part in task]
        return [RowsPartition(whole, GroupShare(index, len(tasks))) for index in range(len(tasks))]
    return [RowsPartition(task) for task in tasks or [()]]
