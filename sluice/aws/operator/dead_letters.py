"""Queues of dead letters as an operator looks at them: letters stay there, and are shown to the next at the end."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sluice.aws.dead_letters import read
from sluice.aws.operator.moved_queues import MovedQueue
from sluice.message import DeadLetter, Message, emptied

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_sqs import SQSClient

WAIT_S = 1  # a poll that doesn't wait asks some servers alone, and may find nothing where there is something
AT_ONCE = 10
COPIES = 2  # times as many are received, at most: SQS may deliver a message twice, also in one answer


def looked_at(client: "SQSClient", url: str, *, most: int) -> Iterator[DeadLetter]:
    """Look at up to `most` letters, each once. All are shown again at the end. Raises `CallFailed`, `QueueGone`.

    Of a group of a FIFO queue SQS shows no more than its first ten.
    """
    queue, seen, kept = MovedQueue(client, url, WAIT_S), set[str](), list[Message]()
    try:
        while len(seen) < most and len(kept) < COPIES * most:
            received = queue.receive(most=min(most - len(seen), AT_ONCE))
            if not received:
                return
            kept += map(emptied, received)
            for message in received:
                if message.message_id not in seen:
                    seen.add(message.message_id)
                    yield read(message)
    finally:
        queue.give_back(kept)
