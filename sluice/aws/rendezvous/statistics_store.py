"""Stores the statistics of a site's rendezvous in DynamoDB.

    pk                sk                            item
    counters          <type or method>|<country>    a row of counts, one attribute per count
    counters#<day>    <type or method>|<country>    the counts of one day
    seen#<day>        <keyed hash>                  the names of the counts that include an address

All counts of one event are in one row, usually of less than a kilobyte. So an event costs one write unit for the
totals, one for the day, and one for an address that is new to this environment. Events that are added twice count
twice. An address is marked before it is counted: if the function dies in between, the address isn't counted.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.clients import calls
from sluice.aws.items import Item, attributes, number, query_pages
from sluice.rendezvous.counts.statistics import FAMILIES, SEPARATOR, Counts, Tally
from sluice.times import DAY_MS, NowMs

COUNTERS = "counters"
SEEN = "seen"
COUNT_PREFIX = "="  # Attributes of counts have this prefix, unlike the item's key and expiry.
DAYS_KEPT = 9  # A day's counts expire after this; `/metrics` shows seven days.
MARKS_KEPT = 2  # Marks of addresses expire when the day's key is deleted, because hashes can't be compared any more.
MAX_KNOWN_MARKS = 150_000  # An address has three or more marks; this many take about 30 MB of memory.


@dataclass(slots=True)
class DynamoStatisticsStore:
    """Stores the statistics in one table. Not thread-safe. Reads raise `CallFailed`.

    `map_concurrently` is called like `map` and may run the calls concurrently.
    """

    client: DynamoDBClient
    table: str
    now_ms: NowMs
    map_concurrently: Callable[..., Iterable[Any]] = map
    _written_marks: set[tuple[str, str, str]] = field(default_factory=set)  # written marks: day, address, name

    def add(self, tallies: Sequence[Tally]) -> None:
        """Count events. After `CallFailed` some events are counted, and count twice if the caller adds them again."""
        rows: dict[tuple[str, str], Counts] = defaultdict(Counter)
        # keys: (day, address), mark's name
        marks: dict[tuple[str, str], dict[str, tuple[str, str]]] = defaultdict(dict)
        if len(self._written_marks) > MAX_KNOWN_MARKS:
            self._written_marks.clear()
        for tally in tallies:
            for partition in (COUNTERS, _day_partition(tally.day)):
                rows[partition, tally.row].update(tally.counts)
            for address, (name, count) in product(tally.addresses, tally.marks.items()):
                if (tally.day, address, name) not in self._written_marks:
                    marks[tally.day, address].setdefault(name, (tally.row, count))
        for (day, address), first in zip(
            marks, self.map_concurrently(lambda item: self._mark_address(*item), marks.items()), strict=True
        ):
            self._written_marks.update((day, address, name) for name in marks[day, address])
            for name in first:
                row, count = marks[day, address][name]
                is_daily = not FAMILIES[count.split(SEPARATOR)[0]].meaning
                for partition in (_day_partition(day),) if is_daily else (COUNTERS, _day_partition(day)):
                    rows[partition, row][count] += 1
        list(self.map_concurrently(lambda item: self._add_row_counts(*item), rows.items()))

    def _mark_address(self, key: tuple[str, str], names: Iterable[str]) -> AbstractSet[str]:
        """Mark an address as counted under these names on this day. Returns the names that are new."""
        day, address = key
        added = set(names)
        with calls("UpdateItem"):
            before = self.client.update_item(
                TableName=self.table,
                Key=attributes({"pk": f"{SEEN}#{day}", "sk": address}),
                UpdateExpression="SET expires_at = :expires_at ADD seen :names",
                ExpressionAttributeValues={
                    ":names": {"SS": sorted(added)},
                    **attributes({":expires_at": self._compute_expiry(MARKS_KEPT)}),
                },
                ReturnValues="ALL_OLD",
            )
        return added - set(before.get("Attributes", {}).get("seen", {}).get("SS", ()))

    def _add_row_counts(self, key: tuple[str, str], counts: Counts) -> None:
        """Add counts to a stored row."""
        partition, name = key
        names = {f"#{place}": COUNT_PREFIX + count for place, count in enumerate(counts)}
        values: dict[str, str | int] = {f":{place}": added for place, added in enumerate(counts.values())}
        expression = f"ADD {', '.join(f'#{place} :{place}' for place in range(len(counts)))}"
        if partition != COUNTERS:
            expression += " SET expires_at = :expires_at"
            values[":expires_at"] = self._compute_expiry(DAYS_KEPT)
        with calls("UpdateItem"):
            self.client.update_item(
                TableName=self.table,
                Key=attributes({"pk": partition, "sk": name}),
                UpdateExpression=expression,
                ExpressionAttributeNames=names,
                ExpressionAttributeValues=attributes(values),
            )

    def _compute_expiry(self, days: int) -> int:
        return (self.now_ms() + days * DAY_MS) // 1000

    def read_totals(self) -> Counts:
        """Read the counts since the site's deployment."""
        return self._read_partition(COUNTERS)

    def read_day(self, day: str) -> Counts:
        """Read the counts of one UTC day. Returns no counts if the day had none or they have expired."""
        return self._read_partition(_day_partition(day))

    def _read_partition(self, partition: str) -> Counts:
        counts_read: Counts = Counter()
        for page in query_pages(self.client, self.table, partition):
            for item in page:
                counts_read.update(read_row(item))
        return counts_read


def read_row(item: Item) -> Counts:
    """Parse the counts in a row, also those of names that only another version of the program knows."""
    names = [name for name in item if name.startswith(COUNT_PREFIX)]
    return Counter({name.removeprefix(COUNT_PREFIX): number(item, name) for name in names})


def _day_partition(day: str) -> str:
    return f"{COUNTERS}#{day}"
