"""Dead letters back to where they came from."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from sluice.aws.dead_letters import read
from sluice.aws.federation.queues import SqsSiteQueues
from sluice.aws.queues import ConsumedQueue
from sluice.errors import CallFailed
from sluice.federation.moves import FIFO_SUFFIX, Copy, Move, copy_to
from sluice.message import Message

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient

WAIT_S = 1  # a poll that doesn't wait asks some servers alone, and may find nothing where there is something
HELD_S = 30  # how long a dead letter of another queue is held while the rest is looked through
MAX_LOOKED_AT = 1_000  # of the dead letters, by one call: other queues' are passed over


class Redrives(msgspec.Struct, frozen=True, kw_only=True):
    """Through a boto3 client. Dead letters say which queue they were in."""

    queues: SqsSiteQueues
    client: "SQSClient"
    dead_letters_url: str
    may_go_on: Callable[[], bool] = lambda: True

    def redrive(self, queue: str) -> int:
        """Put dead letters of the queue back, of a thousand at most; how many. What was tried too often starts anew.

        Raises `CallFailed` for what SQS refuses, when the others are done: it stays.
        """
        looked_at = 0

        def goes(message: Message) -> Copy | None:
            nonlocal looked_at
            looked_at += 1
            letter = read(message)
            return copy_to(queue, letter.message) if letter.source.rsplit(":", 1)[-1] == queue else None

        move = Move(
            source=_DeadLetters(self.client, self.dead_letters_url, WAIT_S, HELD_S),
            send=self.queues.send_batch,
            goes=goes,
            fifo=queue.endswith(FIFO_SUFFIX),
            may_go_on=lambda: looked_at < MAX_LOOKED_AT and self.may_go_on(),
        )
        for _ in move.run():
            pass
        for reason in move.stays.values():
            raise CallFailed("SendMessageBatch", "Failed", reason)
        return move.moved


class _DeadLetters(ConsumedQueue):
    """The queue of dead letters, as the function's role may use it."""

    def give_back(self, messages: Sequence[Message]) -> None:
        """Leave messages hidden until their time is out: the role may show none before."""
