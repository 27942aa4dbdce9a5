"""Messages that are staged but stay in the queue until Spark has committed them: `deleteMode=afterCommit`. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sluice_spark.log.offsets import Position
from sluice_spark.sqs.received import Handles


@dataclass(slots=True)
class Held:
    """By segment, in the order of their numbers."""

    messages: int = 0
    _by_number: dict[int, list[Handles]] = field(default_factory=dict)

    def hold(self, number: int, held: Sequence[Handles]) -> None:
        """Until all of segment `number` is committed.

        A redelivered message comes with the newest segment that has rows: its own is committed no later.
        """
        self._by_number.setdefault(number, []).extend(held)
        self.messages += sum(len(each.receipt_handles) for each in held)

    def due(self, committed: Position) -> Iterator[tuple[int, Sequence[Handles]]]:
        """Yield what may be deleted now, and hold it no longer."""
        for number in sorted(number for number in self._by_number if number < committed.segment):
            held = self._by_number.pop(number)
            self.messages -= sum(len(each.receipt_handles) for each in held)
            yield number, held

    def all(self) -> Sequence[Handles]:
        """List what must stay invisible."""
        return [each for held in self._by_number.values() for each in held]
