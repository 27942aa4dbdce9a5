"""Messages that are staged but stay in the queue until Spark has committed them: `deleteMode=afterCommit`. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sluice_spark.log.offsets import Position
from sluice_spark.sqs.received import Received


@dataclass(slots=True)
class Held:
    """By segment, in the order of their numbers."""

    messages: int = 0
    _by_number: dict[int, list[Received]] = field(default_factory=dict)

    def hold(self, number: int, received: Sequence[Received]) -> None:
        """Until all of segment `number` is committed.

        A redelivered message comes with the newest segment that has rows: its own is committed no later.
        """
        self._by_number.setdefault(number, []).extend(received)
        self.messages += sum(len(answer.messages) for answer in received)

    def due(self, committed: Position) -> Iterator[tuple[int, Sequence[Received]]]:
        """Yield what may be deleted now, and hold it no longer."""
        for number in sorted(number for number in self._by_number if number < committed.segment):
            received = self._by_number.pop(number)
            self.messages -= sum(len(answer.messages) for answer in received)
            yield number, received

    def all(self) -> Sequence[Received]:
        """List what must stay invisible."""
        return [answer for received in self._by_number.values() for answer in received]
