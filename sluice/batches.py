"""A batch of received messages sent on: regrouped by target into as few requests as SQS allows, in order. Pure.

A batch becomes *rounds* of requests. Standard queues have one round. With FIFO queues, a group's messages to different
receivers are sent in different rounds: so when one fails, what follows it in its group hasn't been sent to anyone yet,
and is held back. Within one request SQS decides message by message, so there a failed one can be overtaken by the next
of its group; SQS has no request that would prevent it.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from sluice.errors import CallFailed, DestinationFault, HeldBack, NotDelivered, NotReached, QueueGone
from sluice.message import MAX_MESSAGE_BYTES, Outgoing

MAX_ENTRIES = 10
MAX_REQUEST_BYTES = MAX_MESSAGE_BYTES
HELD_BACK = "held back by an earlier message of its group"
OUT_OF_TIME = "not sent within the batch's time"
# What a queue answers that won't take what it is sent, now or later: its policy, its key, its limit of size.
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
REFUSALS = frozenset(
    {
        *("AccessDenied", "AccessDeniedException", "InvalidSecurity", "UnsupportedOperation"),
        *("InvalidParameterValue", "BatchRequestTooLong", "KmsAccessDenied", "KmsDisabled", "KmsInvalidKeyUsage"),
        *("KmsInvalidState", "KmsNotFound", "KmsOptInRequired", "KMS.AccessDeniedException", "KMS.DisabledException"),
        *("KMS.InvalidStateException", "KMS.InvalidKeyUsageException", "KMS.NotFoundException", "KMS.OptInRequired"),
    }
)

# Sends up to ten entries to a target; the ids of those that SQS refused, with its code, a colon, and its words. Raises
# `QueueGone` for a target that doesn't exist, and another `DestinationFault` for what else goes wrong with all of them.
Send = Callable[[str, Sequence[dict[str, Any]]], Mapping[str, str]]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One message for one target. `position` is the source message's in the batch that was received."""

    position: int
    target: str
    outgoing: Outgoing


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What one `SendMessageBatch` sends to one target, in order. An entry's id is its place in the request."""

    target: str
    entries: tuple[Entry, ...]

    def api(self) -> list[dict[str, Any]]:
        """Spells the entries as the API takes them."""
        spelled: list[dict[str, Any]] = []
        for place, entry in enumerate(self.entries):
            spelled.append({"Id": str(place), **entry.outgoing.fields()})
        return spelled


Round = tuple[Request, ...]


def standard_round(entries: Iterable[Entry]) -> Round:
    """Make the requests for standard queues. The order of entries is kept for each target."""
    by_target: dict[str, list[list[Entry]]] = {}
    sizes: dict[str, int] = {}  # of each target's last request
    for entry in entries:
        size = entry.outgoing.size
        requests = by_target.setdefault(entry.target, [[]])
        so_far = sizes.get(entry.target, 0)
        if requests[-1] and (len(requests[-1]) == MAX_ENTRIES or so_far + size > MAX_REQUEST_BYTES):
            requests.append([])
            so_far = 0
        requests[-1].append(entry)
        sizes[entry.target] = so_far + size
    return tuple(
        [Request(target=target, entries=tuple(of_one)) for target, requests in by_target.items() for of_one in requests]
    )


def fifo_rounds(entries: Iterable[Entry]) -> tuple[Round, ...]:
    """Make the rounds for FIFO queues. Order by position is kept for each group and target.

    A group's next message goes in the same round as the last one where it has the same targets, else in the next. So
    where all goes to one target there is one round.
    """
    in_order = sorted(entries, key=attrgetter("position"))
    if len({entry.target for entry in in_order}) == 1:
        return (standard_round(in_order),)
    of_message: dict[int, list[Entry]] = {}
    for entry in in_order:
        of_message.setdefault(entry.position, []).append(entry)
    rounds: defaultdict[int, list[Entry]] = defaultdict(list)
    so_far: dict[str | None, tuple[int, frozenset[str]]] = {}
    for copies in of_message.values():
        group, targets = copies[0].outgoing.group_id, frozenset(copy.target for copy in copies)
        number, last = so_far.get(group, (0, targets))
        number += targets != last
        so_far[group] = number, targets
        rounds[number].extend(copies)
    return tuple(standard_round(rounds[number]) for number in sorted(rounds))


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """What a dispatch stopped at: entries whose target is `gone`, or has `refused` one, and those of `later` rounds."""

    gone: tuple[Entry, ...] = ()
    refused: tuple["Lost", ...] = ()
    later: tuple[Entry, ...] = ()  # not tried yet


class Lost(NamedTuple):
    """An entry that its target won't have, and why."""

    entry: Entry
    fault: DestinationFault


@dataclass(slots=True, kw_only=True)
class Dispatcher:
    """Sends one batch's entries, and says which source messages are to stay where they are: `failures` by position.

    Deleting comes after sending, always: what isn't among the failures may be deleted. In FIFO queues a failed message
    holds back what follows it in its group, whoever that goes to, and no other group: else a retry that falls to
    another receiver would come there after its successors.

    Targets go side by side on the `executor`; requests to one target one after the other, unless they may go `abreast`.
    Of a target that is `optional` a refusal is no failure: the caller has others for its messages.
    """

    fifo: bool
    send: Send
    executor: Executor | None  # None: one after the other
    abreast: bool = False
    optional: Container[str] = ()
    may_go_on: Callable[[], bool] | None = None  # False where no request is to be begun any more
    sent: list[Entry] = field(default_factory=list)
    failures: dict[int, DestinationFault] = field(default_factory=dict)
    _first_failed: dict[str | None, int] = field(default_factory=dict)

    def dispatch(self, entries: Iterable[Entry]) -> Stopped:
        """Send, round by round, up to the end of the round in which a target is gone, or refuses and is optional.

        What was sent already isn't sent again, nor what has failed: its successors may be ahead of it.
        """
        sent = {(entry.position, entry.target) for entry in self.sent}
        failed = self.failures.keys()
        new = [each for each in entries if each.position not in failed and (each.position, each.target) not in sent]
        rounds: Sequence[Round] = fifo_rounds(new) if self.fifo else (standard_round(new),)
        for number, requests in enumerate(rounds):
            lost = [each for of_lane in self._side_by_side(requests) for each in of_lane]
            if lost:
                later = (entry for each in rounds[number + 1 :] for request in each for entry in request.entries)
                return Stopped(
                    gone=tuple(each.entry for each in lost if isinstance(each.fault, QueueGone)),
                    refused=tuple(each for each in lost if not isinstance(each.fault, QueueGone)),
                    later=tuple(later),
                )
        return Stopped()

    def fail(self, entry: Entry, fault: DestinationFault) -> None:
        """Note an entry that wasn't sent: its source message is to come again."""
        self.failures[entry.position] = fault
        group = entry.outgoing.group_id
        self._first_failed[group] = min(entry.position, self._first_failed.get(group, entry.position))

    def _side_by_side(self, requests: Round) -> Iterable[list[Lost]]:
        lanes: dict[object, list[Request]] = {}
        for number, request in enumerate(requests):
            lanes.setdefault(number if self.abreast else request.target, []).append(request)
        if self.executor is None or len(lanes) == 1:
            return map(self._send, lanes.values())
        return self.executor.map(self._send, lanes.values())

    def _send(self, requests: Sequence[Request]) -> list[Lost]:
        """Send requests one after the other; what their target won't have, and what was to follow that."""
        lost: list[Lost] = []
        for request in requests:
            left = self._not_held_back(request)
            if left is None:
                continue
            if lost:
                lost += [Lost(entry, lost[0].fault) for entry in left.entries]
                continue
            if self.may_go_on is not None and not self.may_go_on():
                for entry in left.entries:
                    self.fail(entry, NotReached(OUT_OF_TIME))
                continue
            code: str | None = None  # of the whole request
            try:
                refused = self.send(left.target, left.api())
            except QueueGone as error:
                lost += [Lost(entry, error) for entry in left.entries]
                continue
            except DestinationFault as error:
                refused = dict.fromkeys(map(str, range(len(left.entries))), str(error))
                code = error.code if isinstance(error, CallFailed) else ""
            lost += self._noted(left, refused, code=code)
        return lost

    def _noted(self, request: Request, refused: Mapping[str, str], *, code: str | None) -> list[Lost]:
        """Note what was sent and what has failed; what an optional target refuses for good."""
        lost: list[Lost] = []
        for place, entry in enumerate(request.entries):
            if str(place) in refused:
                reason = refused[str(place)]
                # With or without the query protocol's prefix.
                said = (reason.partition(":")[0] if code is None else code).removeprefix("AWS.SimpleQueueService.")
                if request.target in self.optional and said in REFUSALS:
                    lost.append(Lost(entry, NotDelivered(reason)))
                else:
                    self.fail(entry, NotDelivered(reason))
            else:
                self.sent.append(entry)
        return lost

    def _not_held_back(self, request: Request) -> Request | None:
        """Take out of the request what is held back, which is noted as failed; None where nothing is left."""
        if not self.fifo:
            return request
        left: list[Entry] = []
        for entry in request.entries:
            first = self._first_failed.get(entry.outgoing.group_id)
            if first is None or entry.position <= first:
                left.append(entry)
            elif entry.position not in self.failures:
                self.fail(entry, HeldBack(HELD_BACK))
        return Request(target=request.target, entries=tuple(left)) if left else None
