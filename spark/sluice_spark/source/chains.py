"""A bounded read with `mode=executors`: each task has a chain of segments, whose numbers are nobody else's.

A task has one segment after the other, receiving those that aren't there, until one has no rows: that ends the chain
for whoever follows it. So a task that is tried again, or has a twin, reads the same. Chains differ in length; whoever
sees that all have ended fills the numbers between, as a log has no gaps.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice_spark.errors import Fenced, SegmentTaken
from sluice_spark.log import segments
from sluice_spark.log.notes import note, notes
from sluice_spark.log.planning import Admission
from sluice_spark.log.store import Store
from sluice_spark.options import Options
from sluice_spark.source.executors import Order, segment
from sluice_spark.source.plan import ONE_TASK, holes, share
from sluice_spark.sqs.client import SqsClient

ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One task's. `first` is the order of its first segment, the others' are `count`, the number of chains, apart."""

    first: Order
    index: int
    count: int
    admission: Admission  # of all its segments

    @property
    def base(self) -> int:
        """The first number of all chains."""
        return self.first.since


def chains(first: Order, count: int, admission: Admission) -> list[Chain]:
    """Divide a bounded read among `count` tasks, which take no more messages than `admission` says; bytes softly."""
    return [
        Chain(
            first=replace(first, number=first.number + index),
            index=index,
            count=count,
            admission=share(admission, index, count),
        )
        for index in range(count)
    ]


def links(
    chain: Chain, store: Store, client: Callable[[], SqsClient], options: Options
) -> Iterator[tuple[int, pa.Table]]:
    """Yield the chain's segments that have rows, with their numbers: published already, or as we do now.

    Whoever stops asking ends the chain. Raises what `segment` raises, and Fenced where another driver is on the log.
    """
    number, left, mean_size, over = chain.first.number, chain.admission, 0.0, False
    try:
        while left.messages != 0 and left.size != 0:
            order = replace(
                chain.first,
                number=number,
                admission=left.bounded(ONE_TASK),
                mean_size=mean_size,
            )
            content = segment(order, store, client, options)
            header = segments.header_of(content)
            if header.epoch != chain.first.epoch:  # to a stream an earlier driver's rows are the log's, here another's
                raise Fenced(f"segment {number} is another read's: one at a time on a staging location")
            if not header.messages:
                break
            yield number, segments.rows_of(content)
            number, left, mean_size = (
                number + chain.count,
                left.less(header.messages, header.size),
                header.size / header.messages,
            )
        over = True
    except GeneratorExit:
        over = True
        raise
    finally:
        if over:
            _end(chain, store)


def _end(chain: Chain, store: Store) -> None:
    note(store, ENDED, chain.base, chain.index)
    ended = {each.numbers[1] for each in notes(store, ENDED, chain.base) if each.numbers[0] == chain.base}
    if len(ended) < chain.count:
        return
    there = segments.numbers_since(store, chain.base)
    ours = [header.number for header in segments.headers_at(store, there) if header.epoch == chain.first.epoch]
    for number in holes(there, chain.base, max(ours, default=chain.base)):
        with suppress(SegmentTaken):  # another, who sees the same, or goes on with a chain that one gave up
            segments.publish(store, segments.planned_header(number, chain.first.epoch, segments.EMPTY), segments.EMPTY)
