"""What a partition of DynamoDB gives in a second, in units, as AWS counts and limits them.

Bursts, and what adaptive capacity does beside, aren't counted on. Both numbers are those of `benchmarks/quotas.toml`.
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/bp-partition-key-design.html
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.quotas import quota
from benchmarks.units import READ, WRITE
from tests.simulation.models.errors import ServiceError

OF_A_SECOND = {WRITE: quota("partition_writes"), READ: quota("partition_reads")}
Meter = Callable[[str, str, float], None]


class Capacity:
    """Of all tables. `now` is the world's clock; each of `meters` is told partition, kind and units of all requests."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.meters: list[Meter] = []
        self._second = 0
        self._taken: defaultdict[tuple[str, str, str], float] = defaultdict(float)

    def left(self, table: str, partition: str, kind: str) -> bool:
        """Whether the partition gives anything more in this second."""
        self._turn()
        return self._taken[table, partition, kind] < OF_A_SECOND[kind]

    def check(self, table: str, partition: str, kind: str) -> None:
        """Refuse a request to a partition that gives nothing more in this second."""
        if not self.left(table, partition, kind):
            raise ServiceError("ProvisionedThroughputExceededException", f"partition {partition}")

    def take(self, table: str, partition: str, kind: str, units: float) -> None:
        """Count what a request took."""
        self._turn()
        self._taken[table, partition, kind] += units
        for meter in self.meters:
            meter(partition, kind, units)

    def _turn(self) -> None:
        if int(self.now()) != self._second:
            self._second = int(self.now())
            self._taken.clear()


def size_of(item: Mapping[str, Any] | None) -> int:
    """Count an item's bytes, about as AWS does: its names and its values."""
    if item is None:
        return 0
    return sum(
        len(name) + sum(len(content) for content in value.values() if isinstance(content, str | bytes))
        for name, value in item.items()
    )
