"""The statistics in DynamoDB: `sluice.rendezvous.ports.StatisticsStore`.

    pk                sk          item
    counters          <family>    every count of a family, an attribute each
    counters#<day>    <family>    the same of one day, and those that only days have
    seen#<day>        <mark>      that an address was there, by its keyed hash

A family is one item, so a page is one query, and what a batch counts on a day is one transaction of some twenty writes:
it is counted whole or not at all.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.logging import Logger

from sluice.aws.clients import calls
from sluice.aws.items import TRANSACTION_CANCELED, Item, attributes, cancellation_codes, number, query_pages, text
from sluice.errors import CallFailed
from sluice.rendezvous.counts.statistics import FAMILIES, Count, Counts, Mark, Tally
from sluice.rendezvous.ports import NowMs
from sluice.times import DAY_MS

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

COUNTERS = "counters"
SEEN = "seen"
COUNT_PREFIX = "="  # what tells a count's attribute from the key's and the expiry's
SEPARATOR = "|"  # of label values: none has it
DAYS_KEPT = 9  # after a day was counted last: `/metrics` has seven
MARKS_KEPT = 2  # and its key is gone, so nothing can be compared with them any more

# A transaction has at most 100 writes, an update's expression 4 KB:
# https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Constraints.html
MAX_MARKS = 60  # new ones, beside an update for each family, of all time and of the day
MAX_COUNTS = 100
MAX_TRIES = 5  # against other writers
MAX_KNOWN_MARKS = 200_000  # in memory, some 20 MB
OTHERS_WRITES = frozenset({"None", "ConditionalCheckFailed", "TransactionConflict"})

logger = Logger()


@dataclass(slots=True)
class DynamoStatisticsStore:
    """The statistics in one table, through a client. Not for threads. Reads raise `CallFailed`."""

    client: "DynamoDBClient"
    table: str
    now_ms: NowMs
    _known: set[tuple[str, str]] = field(default_factory=set)  # marks that are there, by day and name

    def add(self, tallies: Sequence[Tally]) -> Mapping[str, str]:
        """Count events. Returns the ids of those that aren't counted, with the reason: they may be added again."""
        failed: dict[str, str] = {}
        for part in self._parts(tallies):
            try:
                self._write(part)
            except CallFailed as error:
                logger.warning("EventsNotCounted", events=len(part), reason=str(error))
                failed |= {tally.event_id: str(error) for tally in part}
        return failed

    def totals(self) -> Counts:
        """Read all since the beginning."""
        return self._read(COUNTERS)

    def of_day(self, day: str) -> Counts:
        """Read those of one UTC day; empty where nothing was counted, or too long ago."""
        return self._read(f"{COUNTERS}#{day}")

    def _parts(self, tallies: Iterable[Tally]) -> Iterator[Sequence[Tally]]:
        """Divide them into what goes into a transaction each: of one day, and not too many marks and counts."""
        for _, of_day in groupby(sorted(tallies, key=attrgetter("day")), key=attrgetter("day")):
            part: list[Tally] = []
            marks: set[str] = set()
            counts: set[Count] = set()
            for tally in of_day:
                marks |= {mark.name for mark in tally.marks if (tally.day, mark.name) not in self._known}
                counts |= {*tally.counts, *(mark.count for mark in tally.marks)}
                if part and (len(marks) > MAX_MARKS or len(counts) > MAX_COUNTS):
                    yield part
                    part, marks = [], {mark.name for mark in tally.marks}
                    counts = {*tally.counts, *(mark.count for mark in tally.marks)}
                part.append(tally)
            yield part

    def _write(self, part: Sequence[Tally]) -> None:
        """Write a part's counts and marks in one transaction, again where another one came between."""
        day = part[0].day
        counts = Counter(count for tally in part for count in tally.counts)
        if not counts:
            return
        marks = {mark.name: mark for tally in part for mark in tally.marks}
        for tries_left in reversed(range(MAX_TRIES)):
            new = self._new(day, marks.values())
            of_day = counts + Counter(mark.count for mark in new)
            writes: list[Any] = [{"Put": self._seen(day, mark)} for mark in new]
            writes += self._additions(COUNTERS, counts, expiry={})
            writes += self._additions(f"{COUNTERS}#{day}", of_day, expiry={":expires_at": self._after(DAYS_KEPT)})
            try:
                with calls("TransactWriteItems"):
                    self.client.transact_write_items(TransactItems=writes)
            except CallFailed as error:
                # Cancelled by another writer: with fresh knowledge it may be tried again.
                others = error.code == TRANSACTION_CANCELED and {*cancellation_codes(error)} <= OTHERS_WRITES
                if not tries_left or not others:
                    raise
            else:
                if len(self._known) > MAX_KNOWN_MARKS:
                    self._known.clear()
                self._known.update((day, name) for name in marks)
                return

    def _new(self, day: str, marks: Collection[Mark]) -> list[Mark]:
        """Those that aren't there yet."""
        unsure = [mark for mark in marks if (day, mark.name) not in self._known]
        if not unsure:
            return []
        keys = [attributes({"pk": f"{SEEN}#{day}", "sk": mark.name}) for mark in unsure]
        with calls("BatchGetItem"):
            # What it leaves unread counts as new, and then its write fails.
            read = self.client.batch_get_item(RequestItems={self.table: {"Keys": keys, "ConsistentRead": True}})
        there = {text(item, "sk") for item in read["Responses"].get(self.table, [])}
        return [mark for mark in unsure if mark.name not in there]

    def _seen(self, day: str, mark: Mark) -> Any:
        values: dict[str, str | int] = {"sk": mark.name, "expires_at": self._after(MARKS_KEPT)}
        return {
            "TableName": self.table,
            "Item": attributes({"pk": f"{SEEN}#{day}"} | values),
            "ConditionExpression": "attribute_not_exists(pk)",
        }

    def _additions(self, partition: str, counts: Counts, *, expiry: dict[str, str | int]) -> Iterator[Any]:
        """One update for each family."""
        for family, each in groupby(sorted(counts.items()), key=lambda each: each[0].family):
            numbers = {COUNT_PREFIX + SEPARATOR.join(count.values): added for count, added in each}
            values: dict[str, str | int] = {f":{place}": added for place, added in enumerate(numbers.values())}
            expression = "ADD " + ", ".join(f"#{place} :{place}" for place in range(len(numbers)))
            update = {
                "TableName": self.table,
                "Key": attributes({"pk": partition, "sk": family}),
                "UpdateExpression": expression + (" SET expires_at = :expires_at" if expiry else ""),
                "ExpressionAttributeNames": {f"#{place}": name for place, name in enumerate(numbers)},
                "ExpressionAttributeValues": attributes(values | expiry),
            }
            yield {"Update": update}

    def _after(self, days: int) -> int:
        return (self.now_ms() + days * DAY_MS) // 1000

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


def counts_of(item: Item) -> dict[Count, int]:
    """Read the item of a family. What a newer version may have written there isn't counted."""
    family = FAMILIES.get(text(item, "sk"))
    counts = {}
    for name in item if family else ():
        values = tuple(name.removeprefix(COUNT_PREFIX).split(SEPARATOR))
        if family and name.startswith(COUNT_PREFIX) and len(values) == len(family.labels):
            counts[Count(family.name, values)] = number(item, name)
    return counts
