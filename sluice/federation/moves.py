"""Moves messages between queues, once each: receives, sends, then deletes, ten at a time.

Nothing is lost if the move stops: a message is deleted only after the target has accepted it. A new move continues with
the rest; a FIFO queue drops duplicates for five minutes.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sluice.batches import HELD_BACK, MAX_ENTRIES, Dispatcher, Entry, Send
from sluice.errors import BadConfiguration, QueueGone
from sluice.message import FIFO_SUFFIX, Message, Outgoing, drop_contents

if TYPE_CHECKING:  # adapters are passed in, so they are only imported for type checking
    from sluice.aws.queues import ConsumedQueue

HIDDEN_S = 120  # seconds for which a message is hidden while it is moved, or waits for the end of the move
MAX_FRUITLESS = 5  # limit of successive receives of which no message could be moved
MAX_REMEMBERED = 100_000  # remembered ids of moved messages, as SQS may redeliver a message soon after its deletion


class Unmovable(BadConfiguration):
    """A message has no target; the text says why."""


class Copy(NamedTuple):
    """A message to send, and the URL of the target queue."""

    target: str
    outgoing: Outgoing


@dataclass(slots=True, kw_only=True)
class Move:
    """A move of messages.

    `choose_copy` returns a message's copy, None to skip the message, or raises `Unmovable` to keep it. With `fifo` no
    message overtakes another one of its group. The move ends after `most` messages, or when all messages that were sent
    by `until_ms` are moved. `unmoved` has the reasons, by id, for messages that couldn't be sent. A deleted target ends
    the move unless there are `has_several_targets` targets.
    """

    source: "ConsumedQueue"
    send: Send
    choose_copy: Callable[[Message], Copy | None]
    fifo: bool
    has_several_targets: bool = False
    most: int | None = None
    until_ms: int | None = None
    may_go_on: Callable[[], bool]
    moved: int = 0
    unmoved: dict[str, str] = field(default_factory=dict)
    _blocked_groups: set[str] = field(default_factory=set)  # groups with a message that stays, so later ones stay, too
    _skipped_ids: set[str] = field(default_factory=set)  # ids of skipped messages
    _moved_ids: dict[str, None] = field(default_factory=dict)  # ids of moved messages, oldest first

    def run(self) -> Iterator[int]:
        """Run the move. Yields the number of moved messages after each batch. Raises `QueueGone`, `CallFailed`."""
        kept: list[Message] = []
        fruitless = 0
        try:
            while self.may_go_on() and fruitless < MAX_FRUITLESS:
                most = MAX_ENTRIES if self.most is None else min(self.most - self.moved, MAX_ENTRIES)
                received = self.source.receive(most=most) if most else ()
                if not received:
                    return
                kept += map(drop_contents, received)
                passed = len(self._skipped_ids)
                once = {message.message_id: message for message in received}.values()
                sent = self._send_batch([message for message in once if self._is_due(message)])
                self._moved_ids |= dict.fromkeys(message.message_id for message in sent)
                while len(self._moved_ids) > MAX_REMEMBERED:
                    del self._moved_ids[next(iter(self._moved_ids))]
                # A standard queue may deliver a message twice, even in one response: all copies are deleted.
                done = [message for message in received if message.message_id in self._moved_ids]
                if done:
                    self.source.delete(done)
                    kept = [message for message in kept if message.message_id not in self._moved_ids]
                    self.moved += len(sent)
                    yield self.moved
                fruitless = 0 if done or len(self._skipped_ids) > passed else fruitless + 1
        finally:
            self.source.release(kept)

    def _is_due(self, message: Message) -> bool:
        is_newer = self.until_ms is not None and (message.sent_at_ms or 0) > self.until_ms
        if self.fifo and message.group_id in self._blocked_groups:
            self.unmoved.setdefault(message.message_id, HELD_BACK)
        is_done = message.message_id in self._moved_ids or message.message_id in self.unmoved
        return not is_newer and not is_done

    def _send_batch(self, messages: Sequence[Message]) -> list[Message]:
        """Send a batch in order, and return the messages that the target accepted.

        For FIFO queues no two messages of a group are in one request, because SQS may refuse the first and accept the
        second.
        """
        rounds: list[list[Entry]] = []
        before: Counter[str | None] = Counter()  # number of messages by group
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
            number = before[message.group_id] if self.fifo else 0
            before[message.group_id] += 1
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(Entry(position=position, target=copy.target, outgoing=copy.outgoing))
        dispatcher = Dispatcher(fifo=self.fifo, send=self.send, executor=None)
        for round_ in rounds:
            for entry, fault in dispatcher.dispatch(round_).refused:
                if not self.has_several_targets:
                    raise QueueGone(entry.target)
                dispatcher.fail(entry, fault)
        for position, fault in dispatcher.failures.items():
            self._record_failure(messages[position], fault)
        return [messages[entry.position] for entry in dispatcher.sent]

    def _record_failure(self, message: Message, why: Exception) -> None:
        self.unmoved[message.message_id] = str(why)
        self._blocked_groups.add(message.group_id or "")


def copy_to(target: str, message: Message) -> Copy:
    """Return the copy for a target. Its deduplication id in a FIFO queue is the message's id."""
    fifo = target.endswith(FIFO_SUFFIX)
    return Copy(
        target,
        Outgoing(
            body=message.body,
            attributes=message.attributes,
            group_id=message.group_id or (message.message_id if fifo else None),
            deduplication_id=message.message_id if fifo else None,
            trace_header=message.trace_header,
        ),
    )
