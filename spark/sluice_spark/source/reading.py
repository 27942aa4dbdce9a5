"""What a task does for a read, bounded or streaming: rows of the log, made typed values. And which rows are whose."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from sluice_spark.formats.deserialisation import ENVELOPE, REASON, VALUE, deserialised, parser, split
from sluice_spark.formats.payloads import AT_ONCE, following, portions, without_sizes
from sluice_spark.formats.s3_objects import fetched
from sluice_spark.formats.s3_rows import object_rows
from sluice_spark.log.notes import note_errors, quarantine
from sluice_spark.log.planning import ROWS_PER_TASK, Extent, Slice, sliced
from sluice_spark.log.segments import SCHEMA, rows_of
from sluice_spark.log.staging import batches
from sluice_spark.log.store import Store, open_store
from sluice_spark.options import Options, clients_of
from sluice_spark.source.chains import Chain, links
from sluice_spark.source.executors import Order, segment
from sluice_spark.source.fifo import Share, is_fifo, shared
from sluice_spark.workers import spare_tasks

OBJECTS_PER_TASK = 20  # messages, where a row names an object to read: a GET takes some 30 ms
# Spark's timestamps are UTC in Arrow: newer versions have to be told, older ones know no other
_UTC: Mapping[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}


class Rows(InputPartition):
    """Rows of the log for one task, or of a segment or chain that it is to receive. Names a place; never a key."""

    def __init__(
        self,
        location: str,
        profile: str | None,
        slices: Sequence[Slice],
        share: Share | None = None,
        order: Order | Chain | None = None,
    ) -> None:
        super().__init__(None)
        self.location, self.profile, self.slices, self.share, self.order = location, profile, slices, share, order


class Reads:
    """What a reader does on executors, the same for a batch and a stream: of it only options and columns travel."""

    def __init__(self, options: Options, schema: StructType | None = None) -> None:
        self._options, self._schema = options, schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's rows, the same at every call. Raises what the log, the queue or S3 raise."""
        assert isinstance(partition, Rows)  # noqa: S101  tells mypy what our own partitions() made
        spare_tasks()
        store = open_store(partition.location, partition.profile)
        for number, rows in self._received(partition, store):
            part = Slice(number, 0, rows.num_rows)
            yield from self._deserialised(part, rows.replace_schema_metadata(None).to_batches(), partition)
        for part in partition.slices:
            found = batches(store, [part])
            mine = (shared(batch, partition.share) for batch in found) if partition.share else found
            yield from self._deserialised(part, mine, partition)

    def _received(self, partition: Rows, store: Store) -> Iterator[tuple[int, pa.Table]]:
        """Yield the segments that the partition's task is to have, by number."""
        wanted = partition.order
        if wanted is None:
            return
        options, clients = self._options, clients_of(self._options, self._options.connections)
        if isinstance(wanted, Chain):
            yield from links(wanted, store, clients, options)
        else:
            yield wanted.number, rows_of(segment(wanted, store, clients, options))

    def _deserialised(self, part: Slice, given: Iterable[pa.RecordBatch], partition: Rows) -> Iterator[pa.RecordBatch]:
        """Yield a part's rows, which come in as many batches as the receiver made of them."""
        if self._options.deserialisation.raw:
            yield from given
            return
        # What follows writes one note and one file for each part, and so has its rows in one piece.
        whole = pa.Table.from_batches(given, schema=SCHEMA).combine_chunks().to_batches()
        for batch in whole:  # one, or none
            yield from self._values(part, batch, partition)

    def _values(self, part: Slice, batch: pa.RecordBatch, partition: Rows) -> Iterator[pa.RecordBatch]:
        options, wanted = self._options, self._options.deserialisation
        added = [name for name in (ENVELOPE, VALUE, REASON) if self._schema and name in self._schema.names]
        types = {name: arrow_type(self._schema, name) for name in added} if self._schema else {}
        if options.files.read:
            yield from self._of_objects(part, batch, partition, types[VALUE])
            return
        if wanted.payload_buckets:
            yield from self._of_payloads(part, batch, partition, types)
            return
        rows = deserialised(batch, wanted, options.s3, types, parser(wanted))
        self._note(part, _errors(rows), partition)
        yield self._good(part, rows, partition)

    def _of_objects(
        self, part: Slice, batch: pa.RecordBatch, partition: Rows, kind: pa.DataType
    ) -> Iterator[pa.RecordBatch]:
        """Yield a row for each record of the objects, batch by batch; the quarantine has a file for each of these."""
        options, errors = self._options, 0
        get = partial(fetched, options.objects(), limit=options.files.object_bytes)
        envelopes = options.deserialisation.envelopes
        found = object_rows(batch, envelopes, options.s3, files=options.files, kind=kind, get=get)
        for piece, rows in enumerate(found):
            errors += _errors(rows)
            yield self._good(part, rows, partition, piece)
        self._note(part, errors, partition)

    def _of_payloads(
        self, part: Slice, batch: pa.RecordBatch, partition: Rows, types: Mapping[str, pa.DataType]
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with the payloads that are elsewhere, a few of these at a time."""
        options, wanted, errors = self._options, self._options.deserialisation, 0
        get = partial(fetched, options.objects(), limit=options.files.object_bytes)
        follow, parse = following(get, wanted.payload_buckets), parser(wanted)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for piece, some in enumerate(portions(batch)):
                found = deserialised(some, wanted, options.s3, types, parse, follow=follow, each=pool.map)
                rows = without_sizes(found)
                errors += _errors(rows)
                yield self._good(part, rows, partition, piece)
        self._note(part, errors, partition)

    def _good(self, part: Slice, rows: pa.RecordBatch, partition: Rows, piece: int = 0) -> pa.RecordBatch:
        """Leave out the bad rows where these have a place of their own."""
        location = self._options.deserialisation.quarantine
        if not location:
            return rows
        good, bad = split(rows)
        quarantine(open_store(location, partition.profile), part, bad, _index(partition), piece)
        return good

    def _note(self, part: Slice, errors: int, partition: Rows) -> None:
        note_errors(open_store(partition.location, partition.profile), part, errors, _index(partition))


def _errors(rows: pa.RecordBatch) -> int:
    return int(rows.num_rows - rows.column(REASON).null_count)


def _index(partition: Rows) -> int:
    return partition.share.index if partition.share else 0


def arrow_type(schema: StructType, name: str) -> pa.DataType:
    """Give a column's type in Arrow; a struct of no columns where there is no such column."""
    return to_arrow_type(schema[name].dataType, **_UTC) if name in schema.names else pa.struct([])


def as_partitions(options: Options, parts: Sequence[tuple[Extent, int, int]]) -> Sequence[InputPartition]:
    """Divides rows among tasks. At least one partition: 4.0 and 4.1 fail on a batch read without any.

    With FIFO queues each task looks at all rows, for its share of the groups: in order, and none in two tasks.
    """
    place = options.staging_location, options.identity.profile
    tasks = sliced(parts, OBJECTS_PER_TASK if options.files.read else ROWS_PER_TASK)
    if any(is_fifo(url) for url in options.queue_urls) and len(tasks) > 1:
        whole = [part for task in tasks for part in task]
        return [Rows(*place, whole, Share(index, len(tasks))) for index in range(len(tasks))]
    return [Rows(*place, task) for task in tasks or [()]]
