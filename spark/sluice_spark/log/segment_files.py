"""Segments as objects of the store: by number, each published once. What is in one is `segments`'."""

import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from sluice_spark.errors import LogError, SegmentTaken
from sluice_spark.log.segments import HEAD_BYTES, SCHEMA, Header, body_size, encoded, header_of
from sluice_spark.log.store import Store

log = logging.getLogger(__name__)

FOLDER = "segments"
READERS = 16
PUBLISH_ATTEMPTS = 6
PUBLISH_AGAIN_S = 0.5
_NAME = re.compile(rf"{FOLDER}/([0-9]{{20}})\.arrow")
EMPTY = pa.Table.from_batches([], schema=SCHEMA)

Going = Callable[[Sequence[int]], None]  # told which segments are about to be removed


def left(_: Sequence[int]) -> None:
    """Leave what segments name where it is."""


def segment_name(number: int) -> str:
    """Names a segment: sorted by name is sorted by number."""
    return f"{FOLDER}/{number:020d}.arrow"


def numbers_since(store: Store, since: int = 0) -> Collection[int]:
    """Find the segments that exist, from `since` on. What others put beside them is passed over."""
    return {number for number, _ in _numbered(store.names(FOLDER, after=segment_name(since - 1) if since else ""))}


def published_at(store: Store) -> Mapping[int, float]:
    """Find when each segment was published, in epoch seconds."""
    return dict(_numbered(store.names(FOLDER)))


def header_at(store: Store, number: int) -> Header:
    """Read one header. Raises SegmentMissing, UnknownFormat."""
    return header_of(store.head(segment_name(number), HEAD_BYTES))


def headers_at(store: Store, numbers: Iterable[int]) -> Sequence[Header]:
    """Read headers, in the order of their numbers. Raises as `header_at`."""
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(lambda number: header_at(store, number), sorted(numbers)))


def planned_header(number: int, epoch: int, rows: pa.Table, writer: str | None = None) -> Header:
    """Make the header of a segment that is published out of turn: who does so knows no totals."""
    return Header(
        number=number,
        writer=writer or uuid.uuid4().hex,
        published_ms=int(time.time() * 1000),
        messages=rows.num_rows,
        size=body_size(rows),
        messages_before=None,
        size_before=None,
        epoch=epoch,
    )


def publish(store: Store, header: Header, rows: pa.Table | pa.Buffer) -> None:
    """Publish rows, or what `encoded` made of them, under the header's number.

    Raises SegmentTaken if another writer was first. Any other error leaves open whether it came through.
    """
    name, content = segment_name(header.number), encoded(rows, header) if isinstance(rows, pa.Table) else rows
    for attempt in range(1, PUBLISH_ATTEMPTS + 1):
        try:
            store.publish(name, content)
        except SegmentTaken:
            if header_at(store, header.number).writer != header.writer:
                raise
            return  # an earlier try of ours had come through, and only its answer was lost
        except (OSError, LogError) as error:
            if attempt == PUBLISH_ATTEMPTS:
                raise
            log.warning("publishing segment %d again: %s", header.number, error)
            time.sleep(PUBLISH_AGAIN_S * attempt)
        else:
            return


def _numbered(names: Mapping[str, float]) -> Iterator[tuple[int, float]]:
    """Pass over what is nobody's segment: an S3 console's marker of a folder, a README, a half copied file."""
    for name, at in names.items():
        if found := _NAME.fullmatch(name):
            yield int(found[1]), at
