"""Forwarding a batch of received messages: regrouped by target into as few requests as SQS allows, in order. Pure.

A batch becomes *rounds* of requests. Standard queues have one round. With FIFO queues, a group's messages to different
targets are sent in different rounds: if one fails, its successors in the group haven't been sent to any target, and are
held back. Within one request SQS accepts or refuses each message by itself, so there a message can overtake a failed
one of its group; SQS has no request that would prevent it.
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
# Error codes of a queue that will refuse every message, by its policy or its key, or this message, by its size limit.
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
QUEUE_REFUSALS = frozenset(
    {
        *("AccessDenied", "AccessDeniedException", "InvalidSecurity", "UnsupportedOperation", "KmsOptInRequired"),
        *("KmsAccessDenied", "KmsDisabled", "KmsInvalidKeyUsage", "KmsInvalidState", "KmsNotFound"),
        *("KMS.AccessDeniedException", "KMS.DisabledException", "KMS.InvalidKeyUsageException"),
        *("KMS.InvalidStateException", "KMS.NotFoundException", "KMS.OptInRequired"),
    }
)
REFUSALS = QUEUE_REFUSALS | {"InvalidParameterValue", "BatchRequestTooLong"}

# Sends up to ten entries to a target. Returns the ids of refused entries, each with "code: message". Raises `QueueGone`
# if the target doesn't exist, another `DestinationFault` if the whole request fails.
Send = Callable[[str, Sequence[dict[str, Any]]], Mapping[str, str]]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One message for one target. `position` is the source message's position in the received batch."""

    position: int
    target: str
    outgoing: Outgoing


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One `SendMessageBatch` request to one target. An entry's id is its index in the request."""

    target: str
    entries: tuple[Entry, ...]

    def api(self) -> list[dict[str, Any]]:
        """Encode the entries for the API."""
        entries: list[dict[str, Any]] = []
        for place, entry in enumerate(self.entries):
            entries.append({"Id": str(place), **entry.outgoing.fields()})
        return entries


Round = tuple[Request, ...]


def standard_round(entries: Iterable[Entry]) -> Round:
    """Build the requests for standard queues. Keeps the order of entries for each target."""
    by_target: dict[str, list[list[Entry]]] = {}
    sizes: dict[str, int] = {}  # size in bytes of each target's last request
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
        [
            Request(target=target, entries=tuple(request_entries))
            for target, requests in by_target.items()
            for request_entries in requests
        ]
    )


def fifo_rounds(entries: Iterable[Entry]) -> tuple[Round, ...]:
    """Build the rounds for FIFO queues. Keeps the order by position for each group and target.

    A group's next message goes into the same round as the last one if both have the same targets, else into the next.
    So if all messages go to one target there is one round.
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


class DispatchStop(msgspec.Struct, frozen=True, kw_only=True):
    """Entries at which a dispatch stopped: those that their target refuses, and `later` ones, which weren't tried."""

    refused: tuple["RefusedEntry", ...] = ()
    later: tuple[Entry, ...] = ()


class RefusedEntry(NamedTuple):
    """An entry that its target will refuse every time, and the error: `QueueGone` if the target doesn't exist."""

    entry: Entry
    fault: DestinationFault


@dataclass(slots=True, kw_only=True)
class Dispatcher:
    """Sends one batch's entries, and records in `failures`, by position, the source messages that must not be deleted.

    Messages are deleted only after sending: those without a failure may be deleted. In FIFO queues a failed message
    holds back its successors in its group, for every target: a retry that is routed to another target would otherwise
    arrive there after its successors. Other groups continue.

    Requests to different targets run in parallel on the `executor`; those to one target run in order, unless
    `parallel_per_target` is set. A refusal by an `optional` target is no failure: the caller sends its messages to
    another target.
    """

    fifo: bool
    send: Send
    executor: Executor | None  # None runs one request after the other
    parallel_per_target: bool = False
    optional: Container[str] = ()
    may_go_on: Callable[[], bool] | None = None  # called before each request; False stops
    sent: list[Entry] = field(default_factory=list)
    failures: dict[int, DestinationFault] = field(default_factory=dict)
    _first_failed: dict[str | None, int] = field(default_factory=dict)

    def dispatch(self, entries: Iterable[Entry]) -> DispatchStop:
        """Send round by round, up to the end of a round in which a target is gone, or optional and refuses.

        Entries that were sent or have failed are not sent again: a failed message's successors may already be sent.
        """
        sent = {(entry.position, entry.target) for entry in self.sent}
        failed = self.failures.keys()
        new = [
            entry for entry in entries if entry.position not in failed and (entry.position, entry.target) not in sent
        ]
        rounds: Sequence[Round] = fifo_rounds(new) if self.fifo else (standard_round(new),)
        for number, requests in enumerate(rounds):
            refused = [entry for lane in self._send_in_parallel(requests) for entry in lane]
            if refused:
                later = [entry for round_ in rounds[number + 1 :] for request in round_ for entry in request.entries]
                untried = [entry.entry for entry in refused if isinstance(entry.fault, HeldBack)]
                return DispatchStop(
                    refused=tuple(entry for entry in refused if not isinstance(entry.fault, HeldBack)),
                    later=(*untried, *later),
                )
        return DispatchStop()

    def fail(self, entry: Entry, fault: DestinationFault) -> None:
        """Record that an entry wasn't sent, so that its source message is redelivered."""
        self.failures[entry.position] = fault
        group = entry.outgoing.group_id
        self._first_failed[group] = min(entry.position, self._first_failed.get(group, entry.position))

    def _send_in_parallel(self, requests: Round) -> Iterable[list[RefusedEntry]]:
        lanes: dict[object, list[Request]] = {}
        for number, request in enumerate(requests):
            lanes.setdefault(number if self.parallel_per_target else request.target, []).append(request)
        if self.executor is None or len(lanes) == 1:
            return map(self._send, lanes.values())
        return self.executor.map(self._send, lanes.values())

    def _send(self, requests: Sequence[Request]) -> list[RefusedEntry]:
        """Send requests in order. Returns the entries that a target refuses permanently, and those after them.

        If the target refused only single messages, those after them are `HeldBack`.
        """
        undeliverable: list[RefusedEntry] = []
        fault: DestinationFault = HeldBack(HELD_BACK)
        for request in requests:
            left = self._remove_held_back(request)
            if left is None:
                continue
            if undeliverable:
                undeliverable += [RefusedEntry(entry, fault) for entry in left.entries]
                continue
            if self.may_go_on is not None and not self.may_go_on():
                for entry in left.entries:
                    self.fail(entry, NotReached(OUT_OF_TIME))
                continue
            code: str | None = None  # error code if the whole request failed
            try:
                refused = self.send(left.target, left.api())
            except QueueGone as error:
                fault = error
                undeliverable += [RefusedEntry(entry, error) for entry in left.entries]
                continue
            except DestinationFault as error:
                refused = dict.fromkeys(map(str, range(len(left.entries))), str(error))
                code = error.code if isinstance(error, CallFailed) else ""
            undeliverable += self._record_results(left, refused, code=code)
            if undeliverable and code is not None:
                fault = undeliverable[0].fault
        return undeliverable

    def _record_results(self, request: Request, refused: Mapping[str, str], *, code: str | None) -> list[RefusedEntry]:
        """Record which entries were sent or have failed. Returns those that an optional target refuses permanently."""
        lost: list[RefusedEntry] = []
        for place, entry in enumerate(request.entries):
            if str(place) in refused:
                reason = refused[str(place)]
                # The error code may have the query protocol's prefix.
                said = (reason.partition(":")[0] if code is None else code).removeprefix("AWS.SimpleQueueService.")
                if request.target in self.optional and said in REFUSALS:
                    lost.append(RefusedEntry(entry, NotDelivered(reason)))
                else:
                    self.fail(entry, NotDelivered(reason))
            else:
                self.sent.append(entry)
        return lost

    def _remove_held_back(self, request: Request) -> Request | None:
        """Remove held-back entries from the request and record them as failed; None if no entry is left."""
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
