"""A table's stream as AWS documents it, and Lambda's trigger by it: shards that split, batches that come again.

The records of one partition key are in order, those of two aren't: each is in the shard of its hash. A shard that is
split is read to its end before its children are. A batch that failed comes again, whole, in halves, or from the record
on that was reported; one that didn't may come again too, as nobody promises that it doesn't.
https://docs.aws.amazon.com/lambda/latest/dg/with-ddb.html
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.kernel.faults import Kind
from tests.simulation.kernel.scheduler import Unsupported
from tests.simulation.models.lambdas import Function, Outcome

POLLED_S = 0.25  # how long Lambda takes to see a record, about
AGAIN_S = 1.0  # after a batch that failed
HASHES = 2**32
COMES_AGAIN = 0.05  # of the batches that were done

Item = Mapping[str, Any]
Record = dict[str, Any]


@dataclass(slots=True, eq=False)
class Shard:
    """The records of some hashes, in order. `position` is how far the trigger is; with children it gets no more."""

    first: int
    end: int
    records: list[Record] = field(default_factory=list)
    children: list["Shard"] = field(default_factory=list)
    parent: "Shard | None" = None
    position: int = 0
    limit: int | None = None  # of the next batch, after one that failed
    is_running: bool = False
    is_armed: bool = False

    @property
    def is_read(self) -> bool:
        """Whether nothing is left of it, and nothing will come."""
        return bool(self.children) and self.position == len(self.records)


class Stream:
    """What a table's changes are told to; of these a trigger gets what its filters let through."""

    def __init__(self, world: Any, function: Function, *, filters: Sequence[Item], window_s: float) -> None:
        self.world, self.function, self.filters = world, function, filters
        self.batch, self.window_s = 1_000, window_s
        self.open = [Shard(0, HASHES)]
        self.observers: list[Callable[[Record], None]] = []
        self.told = 0
        self.actor = world.scheduler.actor("stream")
        self.actor.site = function.site

    def cancel(self, key: tuple[str, str], old: Item | None, new: Item | None) -> None:
        """Add the record of a change; one that changes nothing has none."""
        if old == new:
            return
        self.told += 1
        name = "INSERT" if old is None else ("REMOVE" if new is None else "MODIFY")
        images = {"OldImage": old, "NewImage": new}
        change = {
            "Keys": {"pk": {"S": key[0]}, "sk": {"S": key[1]}},
            "SequenceNumber": f"{100_000_000_000_000_000_000 + self.told}",
            **{name: dict(image) for name, image in images.items() if image is not None},
        }
        record = {"eventName": name, "eventSourceARN": "arn:aws:dynamodb:stream", "dynamodb": change}
        if not any(lets_through(pattern, record) for pattern in self.filters):
            return
        for observer in self.observers:
            observer(record)
        place = zlib.crc32(key[0].encode())
        shard = next(each for each in self.open if each.first <= place < each.end)
        shard.records.append(record)
        self._arm(shard, POLLED_S + self.window_s)

    def split(self) -> None:
        """Split every shard in two; none is written any more."""
        for shard in self.open:
            middle = (shard.first + shard.end) // 2
            shard.children = [Shard(shard.first, middle, parent=shard), Shard(middle, shard.end, parent=shard)]
        self.open = [child for shard in self.open for child in shard.children]

    @property
    def is_read(self) -> bool:
        """Whether the trigger has read all."""
        return all(shard.position == len(shard.records) and _is_done(shard.parent) for shard in self.open)

    # The trigger

    def _arm(self, shard: Shard, after_s: float) -> None:
        if not shard.is_armed:
            shard.is_armed = True
            self.world.scheduler.at(self.world.now + after_s, lambda: self._look(shard))

    def _look(self, shard: Shard) -> None:
        shard.is_armed = False
        scheduler = self.world.scheduler
        before, scheduler.current = scheduler.current, self.actor
        try:
            self._read(shard)
        finally:
            scheduler.current = before

    def _read(self, shard: Shard) -> None:
        if shard.is_running or shard.position == len(shard.records):
            return
        if not _is_done(shard.parent):
            self._arm(shard, AGAIN_S)
            return
        batch = shard.records[shard.position : shard.position + (shard.limit or self.batch)]
        shard.is_running = True
        if self.world.happens(Kind.REDEPLOY):
            self.world.lambdas.redeploy()
        self.world.lambdas.run(self.function, {"Records": batch}, lambda outcome: self._done(shard, batch, outcome))

    def _done(self, shard: Shard, batch: Sequence[Record], outcome: Outcome) -> None:
        shard.is_running = False
        failures = (outcome.answer or {}).get("batchItemFailures", [])
        if outcome.error is not None:
            shard.limit = max(1, len(batch) // 2)
        elif failures:
            numbers = [record["dynamodb"]["SequenceNumber"] for record in batch]
            shard.position += min(numbers.index(failure["itemIdentifier"]) for failure in failures)
        elif not self._comes_again():
            shard.position += len(batch)
            shard.limit = None
        if shard.position < len(shard.records):
            self._arm(shard, AGAIN_S)

    def _comes_again(self) -> bool:
        before, self.world.scheduler.current = self.world.scheduler.current, self.actor
        try:
            return bool(self.world.happens(Kind.DUPLICATE, COMES_AGAIN))
        finally:
            self.world.scheduler.current = before


def _is_done(shard: Shard | None) -> bool:
    return shard is None or (shard.is_read and _is_done(shard.parent))


def lets_through(pattern: Item, record: Item) -> bool:
    """Whether a filter's pattern matches: https://docs.aws.amazon.com/lambda/latest/dg/invocation-eventfiltering.html."""
    for name, asked in pattern.items():
        found = record.get(name)
        if isinstance(asked, Mapping):
            if not isinstance(found, Mapping) or not lets_through(asked, found):
                return False
        elif not any(_matches(each, found) for each in asked):
            return False
    return True


def _matches(asked: object, found: object) -> bool:
    match asked:
        case str():
            return found == asked
        case {"prefix": str(prefix)}:
            return isinstance(found, str) and found.startswith(prefix)
        case {"anything-but": [*others]}:
            return found is not None and found not in others
        case {"exists": bool(exists)}:
            return (found is not None) is exists
    raise Unsupported(f"pattern {asked!r}")
