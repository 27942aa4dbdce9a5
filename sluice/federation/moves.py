"""Moves messages between queues, once each: receives, sends, then deletes, ten at a time.

Nothing is lost if the move stops: a message is deleted only after the target has accepted it. A new move continues with
the remaining messages. A FIFO queue drops duplicates for five minutes.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sluice.batches import HELD_BACK, MAX_ENTRIES, Dispatcher, Entry, Send
from sluice.errors import BadConfiguration, QueueGone
from sluice.message import FIFO_SUFFIX, Message, Outgoing, drop_contents

if TYPE_CHECKING:  # Adapters are passed in as arguments, so their classes are only imported for type checking.
    from sluice.aws.queues import ConsumedQueue

HIDDEN_S = 120  # visibility timeout in seconds of a message that is being moved, or that stays
MAX_FRUITLESS = 5  # the move ends after this many receives in a row without a message to move
MAX_REMEMBERED = 100_000  # SQS may redeliver a message soon after its deletion, so ids of moved messages are kept


class Unmovable(BadConfiguration):
    """A message has no target queue. The text says why."""


class MovedCopy(NamedTuple):
    """A message to send, and the URL of its target queue."""

    target: str
    outgoing: Outgoing


@dataclass(slots=True, kw_only=True)
class Move:
    """A move of messages from one queue.

    `choose_copy` returns the copy to send for a message, or None to skip the message. It raises `Unmovable` if the
    message has to stay. With `fifo` no message overtakes an earlier message of its group. The move ends after `most`
    messages, or when all messages that were sent by `until_ms` are moved. `unmoved` has the reason for each message
    that couldn't be sent, by id. If a target queue is missing, the move ends, unless it `has_several_targets`.
    """

    source: "ConsumedQueue"
    send: Send
    choose_copy: Callable[[Message], MovedCopy | None]
    fifo: bool
    has_several_targets: bool = False
    most: int | None = None
    until_ms: int | None = None
    may_go_on: Callable[[], bool]
    moved: int = 0
    unmoved: dict[str, str] = field(default_factory=dict)
    _blocked_groups: set[str] = field(default_factory=set)  # groups of which no later message may move
    _skipped_ids: set[str] = field(default_factory=set)  # ids of skipped messages
    _moved_ids: dict[str, None] = field(default_factory=dict)  # ids of moved messages, from the oldest

    def run(self) -> Iterator[int]:
        """Run the move. After each batch, yields the total of moved messages. Raises `QueueGone`, `CallFailed`."""
        remaining: list[Message] = []
        fruitless = 0
        try:
            while self.may_go_on() and fruitless < MAX_FRUITLESS:
                most = MAX_ENTRIES if self.most is None else min(self.most - self.moved, MAX_ENTRIES)
                received = self.source.receive(most=most) if most else ()
                if not received:
                    return
                remaining += map(drop_contents, received)
                passed = len(self._skipped_ids)
                once = {message.message_id: message for message in received}.values()
                sent = self._send_batch([message for message in once if self._is_due(message)])
                self._moved_ids |= dict.fromkeys(message.message_id for message in sent)
                while len(self._moved_ids) > MAX_REMEMBERED:
                    del self._moved_ids[next(iter(self._moved_ids))]
                # A standard queue may deliver a message twice, even in one response. All of its copies are deleted.
                done = [message for message in received if message.message_id in self._moved_ids]
                if done:
                    self.source.delete(done)
                    remaining = [message for message in remaining if message.message_id not in self._moved_ids]
                    self.moved += len(sent)
                    yield self.moved
                fruitless = 0 if done or len(self._skipped_ids) > passed else fruitless + 1
        finally:
            self.source.release(remaining)

    def _is_due(self, message: Message) -> bool:
        is_newer = self.until_ms is not None and (message.sent_at_ms or 0) > self.until_ms
        if self.fifo and message.group_id in self._blocked_groups:
            self.unmoved.setdefault(message.message_id, HELD_BACK)
        is_done = message.message_id in self._moved_ids or message.message_id in self.unmoved
        return not is_newer and not is_done

    def _send_batch(self, messages: Sequence[Message]) -> list[Message]:
        """Send a batch in order. Returns the messages that the targets accepted.

        For FIFO queues, messages of one group are sent in separate requests, because SQS might refuse the first message
        of a request and accept the second.
        """
        entry_rounds: list[list[Entry]] = []
        counts_by_group: Counter[str | None] = Counter()  # number of messages by group
        for position, message in enumerate(messages):
            try:
                copy = self.choose_copy(message)
            except Unmovable as error:
                self._record_failure(message, error)
                continue
            if copy is None:
                self._skipped_ids.add(message.message_id)
                continue
            if self.fifo and message.group_id in self._blocked_groups:
                continue
            number = counts_by_group[message.group_id] if self.fifo else 0
            counts_by_group[message.group_id] += 1
            if number == len(entry_rounds):
                entry_rounds.append([])
            entry_rounds[number].append(Entry(position=position, target=copy.target, outgoing=copy.outgoing))
        dispatcher = Dispatcher(fifo=self.fifo, send=self.send, executor=None)
        for round_ in entry_rounds:
            for entry, fault in dispatcher.dispatch(round_).refused:
                if not self.has_several_targets:
                    raise QueueGone(entry.target)
                dispatcher.fail(entry, fault)
        for position, fault in dispatcher.failures.items():
            self._record_failure(messages[position], fault)
        return [messages[entry.position] for entry in dispatcher.sent]

    def _record_failure(self, message: Message, error: Exception) -> None:
        self.unmoved[message.message_id] = str(error)
        self._blocked_groups.add(message.group_id or "")


def build_copy(target: str, message: Message) -> MovedCopy:
    """Return a copy of the message for a target. In a FIFO queue, the message's id is the deduplication id."""
    fifo = target.endswith(FIFO_SUFFIX)
    return MovedCopy(
        target,
        Outgoing(
            body=message.body,
            attributes=message.attributes,
            group_id=message.group_id or (message.message_id if fifo else None),
            deduplication_id=message.message_id if fifo else None,
            trace_header=message.trace_header,
        ),
    )
