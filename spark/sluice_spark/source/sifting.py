"""What of received messages is staged, and what has been before: redelivered, as its deletion had not come through."""

from collections.abc import Iterable, Sequence

from sluice_spark.log.staging import StagedLog
from sluice_spark.sqs.received import Message, Received, divided

Sifted = tuple[Sequence[Received], Sequence[Received], Sequence[str]]


class Sieve:
    """Of a log. `duplicates` are the messages that were received again."""

    def __init__(self, staged: StagedLog) -> None:
        self._staged = staged
        self.duplicates = 0

    def sifted(self, taken: Sequence[Received]) -> Sifted:
        """First comes what is to be staged, then what need not be, then the ids of the first."""
        ids = _ids(taken)
        if self._staged.notified is None and self._staged.seen.taken(ids):  # the usual, at little cost
            return taken, (), ids
        fresh, again = self._staged.unread(*self._without_duplicates(taken))
        ids = _ids(fresh)
        self._staged.seen.taken(ids)
        return fresh, again, ids

    def _without_duplicates(self, taken: Sequence[Received]) -> tuple[list[Received], list[Received]]:
        """First comes what is new, then what was taken before."""
        seen, now = self._staged.seen, set[str]()

        def new(message: Message) -> Message | None:
            identity = message.message_id
            is_known = identity in seen or identity in now
            now.add(identity)
            return None if is_known else message

        fresh, again = divided(taken, new)
        self.duplicates += sum(len(answer.messages) for answer in again)
        return fresh, again


def _ids(received: Iterable[Received]) -> list[str]:
    return [message.message_id for answer in received for message in answer.messages]
