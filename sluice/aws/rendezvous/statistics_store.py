"""What was counted of a site's rendezvous, in DynamoDB.

    pk                sk                            item
    counters          <kind>|<label>|<country>      a row of counts, an attribute each
    counters#<day>    <kind>|<label>|<country>      the same of one day, and those that only days have
    seen#<day>        <keyed hash>                  an address: by which record each of its marks was told first

What one event counts as is in one row, which stays below a kilobyte: so it is one write unit for all time, one for the
day, and one for an address that this environment hasn't seen. A row remembers, lane by lane, the position that was
counted last, and its write asks for it: what comes again, by whomever and however it is cut, is counted once. An
address's marks remember positions too, so that what was new when it was counted first is new when it comes again.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from aws_lambda_powertools.logging import Logger

from sluice.aws.clients import calls
from sluice.aws.items import Item, attributes, number, query_pages, standing_item, text
from sluice.errors import CallFailed
from sluice.rendezvous.counts.statistics import (
    Count,
    Counts,
    Mark,
    Position,
    Tally,
    in_row,
    of_row,
    row_name,
)
from sluice.times import DAY_MS, NowMs

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

COUNTERS = "counters"
SEEN = "seen"
# What tells counts' and positions' attributes from the key's and the expiry's, and from each other's.
COUNT_PREFIX = "="
POSITION_PREFIX = "@"
NO_MARKS = frozenset({"pk", "sk", "expires_at"})  # of an address
DAYS_KEPT = 9  # after a day was counted last: `/metrics` has seven
MARKS_KEPT = 2  # and its key is gone, so nothing can be compared with them any more
MAX_TRIES = 3  # to write what isn't counted yet: the second knows the positions
MAX_KNOWN_ADDRESSES = 50_000  # in memory, some 20 MB

Given = TypeVar("Given")
Done = TypeVar("Done")
SideBySide = Callable[[Callable[[Given], Done], Iterable[Given]], Iterable[Done]]

logger = Logger()


@dataclass(slots=True)
class DynamoStatisticsStore:
    """The statistics in one table, through a client. Not for threads. Reads raise `CallFailed`.

    `side_by_side` is a `map` for writes, each of another item.
    """

    client: "DynamoDBClient"
    table: str
    now_ms: NowMs
    side_by_side: SideBySide[Any, Any] = map
    _known: dict[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)  # by day and address

    def add(self, tallies: Sequence[Tally]) -> Mapping[Position, str]:
        """Count events, which are in their stream's order; what was counted before, by its position, is passed over.

        Returns the positions that aren't counted, or not wholly, with the reason: they and what follows the first of
        them have to be added again before anything that comes after these.
        """
        new, failed = self._new(tallies)
        # No row may be past what its addresses aren't known for: it would pass over it the next time.
        first = next((place for place, each in enumerate(tallies) if each.position in failed), len(tallies))
        failed |= {each.position: failed[tallies[first].position] for each in tallies[first:]}
        rows: dict[tuple[str, str], list[tuple[Position, Mapping[Count, int]]]] = {}
        for tally, marked in zip(tallies[:first], new[:first], strict=True):
            if tally.row is not None:
                of_day = Counter(tally.counts) + Counter(mark.count for mark in marked)
                name = row_name(tally.row)
                rows.setdefault((COUNTERS, name), []).append((tally.position, tally.counts))
                rows.setdefault((f"{COUNTERS}#{tally.day}", name), []).append((tally.position, of_day))
        for uncounted in self.side_by_side(lambda each: self._count(*each), rows.items()):
            failed |= uncounted
        if failed:
            logger.warning("EventsNotCounted", positions=len(failed), reason=next(iter(failed.values())))
        return failed

    # Addresses

    def _new(self, tallies: Sequence[Tally]) -> tuple[list[list[Mark]], dict[Position, str]]:
        """Find of each event the marks that it is the first to tell of; and the positions that it isn't known for."""
        told: dict[tuple[str, str], dict[str, tuple[int, Mark]]] = {}  # by day and address, what, and who is first
        for place, tally in enumerate(tallies):
            for mark in tally.marks:
                told.setdefault((tally.day, mark.address), {}).setdefault(mark.what, (place, mark))
        if len(self._known) > MAX_KNOWN_ADDRESSES:
            self._known.clear()
        asked = {
            key: {what: _written(tallies[place].position) for what, (place, _) in marks.items()}
            for key, marks in told.items()
            if not marks.keys() <= self._known.get(key, {}).keys()
        }
        reasons = dict(zip(asked, self.side_by_side(lambda each: self._see(*each), asked.items()), strict=True))
        new: list[list[Mark]] = [[] for _ in tallies]
        failed: dict[Position, str] = {}
        for key, marks in told.items():
            for what, (place, mark) in marks.items():
                if reason := reasons.get(key):
                    failed[tallies[place].position] = reason
                elif self._known[key][what] == _written(tallies[place].position):
                    new[place].append(mark)
        return new, failed

    def _see(self, key: tuple[str, str], marks: Mapping[str, str]) -> str:
        """Note by which records an address's marks were told first, where they weren't; the reason why it can't be."""
        day, address = key
        values: dict[str, str | int] = {f":{place}": position for place, position in enumerate(marks.values())}
        firsts = ", ".join(f"#{place} = if_not_exists(#{place}, :{place})" for place in range(len(marks)))
        try:
            with calls("UpdateItem"):
                seen = self.client.update_item(
                    TableName=self.table,
                    Key=attributes({"pk": f"{SEEN}#{day}", "sk": address}),
                    UpdateExpression=f"SET expires_at = :expires_at, {firsts}",
                    ExpressionAttributeNames={f"#{place}": what for place, what in enumerate(marks)},
                    ExpressionAttributeValues=attributes(values | {":expires_at": self._after(MARKS_KEPT)}),
                    ReturnValues="ALL_NEW",
                )
        except CallFailed as error:
            return str(error)
        self._known[key] = {what: text(seen["Attributes"], what) for what in seen["Attributes"].keys() - NO_MARKS}
        return ""

    # Rows

    def _count(
        self, key: tuple[str, str], told: Sequence[tuple[Position, Mapping[Count, int]]]
    ) -> Mapping[Position, str]:
        """Add to a row what it hasn't counted yet. Returns the positions that can't be, with the reason."""
        left = told
        for _ in range(MAX_TRIES):
            try:
                with calls("UpdateItem"):
                    self.client.update_item(**self._addition(key, left))
            except CallFailed as error:
                reason, standing = str(error), standing_item(error)
                if standing is None:
                    break
                left = [each for each in left if each[0].sequence > text(standing, POSITION_PREFIX + each[0].lane)]
                if not left:
                    return {}
            else:
                return {}
        return {position: reason for position, _ in left}

    def _addition(self, key: tuple[str, str], told: Sequence[tuple[Position, Mapping[Count, int]]]) -> Any:
        """Write the update of a row: on condition that it stands, lane by lane, before the first that is told."""
        partition, name = key
        numbers: Counter[str] = Counter()
        firsts: dict[str, str] = {}
        lasts: dict[str, str] = {}
        for position, counts in told:
            firsts.setdefault(position.lane, position.sequence)
            lasts[position.lane] = position.sequence
            numbers.update({in_row(count): added for count, added in counts.items()})
        values: dict[str, str | int] = {f":n{place}": added for place, added in enumerate(numbers.values())}
        values |= {f":f{place}": sequence for place, sequence in enumerate(firsts.values())}
        values |= {f":l{place}": sequence for place, sequence in enumerate(lasts.values())}
        lanes = range(len(lasts))
        set_ = [f"#l{place} = :l{place}" for place in lanes]
        if partition != COUNTERS:
            set_.append("expires_at = :expires_at")
            values |= {":expires_at": self._after(DAYS_KEPT)}
        names = {f"#n{place}": COUNT_PREFIX + written for place, written in enumerate(numbers)}
        return {
            "TableName": self.table,
            "Key": attributes({"pk": partition, "sk": name}),
            "UpdateExpression": f"SET {', '.join(set_)} ADD {', '.join(f'{name} :{name[1:]}' for name in names)}",
            "ConditionExpression": " AND ".join(
                f"(attribute_not_exists(#l{place}) OR #l{place} < :f{place})" for place in lanes
            ),
            "ExpressionAttributeNames": names
            | {f"#l{place}": POSITION_PREFIX + lane for place, lane in enumerate(lasts)},
            "ExpressionAttributeValues": attributes(values),
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _after(self, days: int) -> int:
        return (self.now_ms() + days * DAY_MS) // 1000

    # What is read

    def totals(self) -> Counts:
        """Read all since the beginning."""
        return self._read(COUNTERS)

    def of_day(self, day: str) -> Counts:
        """Read those of one UTC day; empty where nothing was counted, or too long ago."""
        return self._read(f"{COUNTERS}#{day}")

    def _read(self, partition: str) -> Counts:
        found: Counts = Counter()
        for page in query_pages(
            self.client,
            TableName=self.table,
            KeyConditionExpression="pk = :pk",
            ExpressionAttributeValues=attributes({":pk": partition}),
        ):
            for item in page:
                found.update(counts_of(item))
        return found


def counts_of(item: Item) -> Counts:
    """Read a row. What a newer version may have written there isn't counted."""
    numbers = {name.removeprefix(COUNT_PREFIX): number(item, name) for name in item if name.startswith(COUNT_PREFIX)}
    return of_row(text(item, "sk"), numbers)


def _written(position: Position) -> str:
    return f"{position.lane}/{position.sequence}"
