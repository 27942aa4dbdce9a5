"""Adapts SQS to federation: finds, creates and configures the site's own queues, and redrives dead letters."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sluice.aws.clients import calls
from sluice.aws.dead_letters import read_dead_letter
from sluice.aws.queues import ConsumedQueue
from sluice.aws.splitting.queues import SplitQueues
from sluice.errors import CallFailed
from sluice.federation.moves import Move, MovedCopy, build_copy
from sluice.message import FIFO_SUFFIX, Message

REDRIVE_POLICY, POLICY = "RedrivePolicy", "Policy"
WAIT_S = 1  # In a wait of one second, SQS asks all of its servers. Without a wait it may miss messages.
HIDDEN_S = 30  # a redrive hides other queues' dead letters for this time
MAX_READ_LETTERS = 1_000  # one redrive reads at most this many dead letters, other queues' included


@dataclass(frozen=True, slots=True)
class SqsSiteQueues(SplitQueues):
    """Manages the site's own queues, by name. `arn_prefix` is a queue's ARN without the queue's name."""

    arn_prefix: str = ""

    def arn(self, name: str) -> str:
        """Return the ARN of the queue with this name."""
        return self.arn_prefix + name

    def configure(self, name: str, attributes: Mapping[str, str]) -> bool:
        """Set a queue's attributes and remove its policy. Returns whether anything changed. Raises `QueueGone`."""
        with calls("GetQueueAttributes", queue=name):
            current = self.client.get_queue_attributes(QueueUrl=self.url(name), AttributeNames=["All"])["Attributes"]

        def normalize(name: str, current_values: Mapping[str, str]) -> object:
            """Return an attribute's value in a form that can be compared, because SQS reformats redrive policies."""
            value = current_values.get(name)
            if name != REDRIVE_POLICY or not value:
                return value
            return {key: str(part) for key, part in json.loads(value).items()}

        current_values: Mapping[str, str] = {str(attribute): value for attribute, value in current.items()}
        lacking = {
            attribute: value
            for attribute, value in attributes.items()
            if normalize(attribute, current_values) != normalize(attribute, attributes)
        }
        if current_values.get(POLICY):
            lacking[POLICY] = ""
        if lacking:
            with calls("SetQueueAttributes", queue=name):
                # boto3's type of the argument lists all attribute names, but these names are only known at run time.
                self.client.set_queue_attributes(QueueUrl=self.url(name), Attributes=lacking)  # type: ignore[arg-type]
        return bool(lacking)

    def redrive(self, queue: str, *, dead_letters_url: str, may_go_on: Callable[[], bool] = lambda: True) -> int:
        """Move dead letters back to their queue, where their receive counts start anew.

        Returns the number of moved messages. A call reads at most a thousand dead letters. If SQS refuses some, they
        stay dead letters, and the call raises `CallFailed` at its end.
        """
        looked_at = 0

        def choose_copy(message: Message) -> MovedCopy | None:
            nonlocal looked_at
            looked_at += 1
            letter = read_dead_letter(message)
            return build_copy(queue, letter.message) if letter.source.rsplit(":", 1)[-1] == queue else None

        move = Move(
            source=DeadLetterQueue(self.client, dead_letters_url, WAIT_S, HIDDEN_S),
            send=self.send_batch,
            choose_copy=choose_copy,
            fifo=queue.endswith(FIFO_SUFFIX),
            may_go_on=lambda: looked_at < MAX_READ_LETTERS and may_go_on(),
        )
        for _ in move.run():
            pass
        for reason in move.unmoved.values():
            raise CallFailed("SendMessageBatch", "Failed", reason)
        return move.moved


class DeadLetterQueue(ConsumedQueue):
    """Receives from the dead-letter queue, within the permissions of the function's role."""

    def release(self, messages: Sequence[Message]) -> None:
        """Do nothing: messages stay hidden for their visibility timeout, which the role isn't allowed to shorten."""
