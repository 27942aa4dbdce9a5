"""Forwards a batch of received messages in order, with as few requests to each target as SQS allows. Pure.

A batch becomes *rounds* of requests. Standard queues have one round. With FIFO queues, a message group's messages to
different targets are sent in different rounds: if one message fails, its successors in the group are not sent.

Within one request SQS accepts or refuses each message by itself, so there a message can overtake a failed message of
its group; SQS has no request that would prevent that.
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
# With these error codes a queue refuses every message, by its policy or KMS key, or a message that is too large.
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

# A `Send` sends up to ten entries to a target. It returns the ids of refused entries, each with "code: message".
# A `Send` raises `QueueGone` if the target doesn't exist, and `DestinationFault` if the whole request fails.
Send = Callable[[str, Sequence[dict[str, Any]]], Mapping[str, str]]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One message for one target. `position` is the source message's position in the received batch."""

    position: int
    target: str
    outgoing: Outgoing


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One `SendMessageBatch` request to one target. An entry's id is the entry's index in the request."""

    target: str
    entries: tuple[Entry, ...]

    def api(self) -> list[dict[str, Any]]:
        """Encode the entries for the API."""
        entries: list[dict[str, Any]] = []
        for place, entry in enumerate(self.entries):
            entries.append({"Id": str(place), **entry.outgoing.fields()})
        return entries


Round = tuple[Request, ...]


def build_standard_round(entries: Iterable[Entry]) -> Round:
    """Build the requests for standard queues. Keeps the order of entries for each target."""
    requests_by_target: dict[str, list[list[Entry]]] = {}
    request_sizes: dict[str, int] = {}  # The value is the size of the target's last request, in bytes.
    for entry in entries:
        size = entry.outgoing.size
        requests = requests_by_target.setdefault(entry.target, [[]])
        size_so_far = request_sizes.get(entry.target, 0)
        if requests[-1] and (len(requests[-1]) == MAX_ENTRIES or size_so_far + size > MAX_REQUEST_BYTES):
            requests.append([])
            size_so_far = 0
        requests[-1].append(entry)
        request_sizes[entry.target] = size_so_far + size
    return tuple(
        [
            Request(target=target, entries=tuple(request_entries))
            for target, requests in requests_by_target.items()
            for request_entries in requests
        ]
    )


def build_fifo_rounds(entries: Iterable[Entry]) -> tuple[Round, ...]:
    """Build the rounds for FIFO queues. Keeps the order of positions for each message group and target.

    A group's next message joins the round of the group's previous message if both have the same targets; otherwise it
    goes into the next round. If all messages go to one target, there is one round.
    """
    in_order = sorted(entries, key=attrgetter("position"))
    if len({entry.target for entry in in_order}) == 1:
        return (build_standard_round(in_order),)
    entries_by_position: dict[int, list[Entry]] = {}
    for entry in in_order:
        entries_by_position.setdefault(entry.position, []).append(entry)
    rounds: defaultdict[int, list[Entry]] = defaultdict(list)
    last_rounds: dict[str | None, tuple[int, frozenset[str]]] = {}
    for copies in entries_by_position.values():
        group, targets = copies[0].outgoing.group_id, frozenset(copy.target for copy in copies)
        number, last = last_rounds.get(group, (0, targets))
        number += targets != last
        last_rounds[group] = number, targets
        rounds[number].extend(copies)
    return tuple(build_standard_round(rounds[number]) for number in sorted(rounds))


class DispatchStop(msgspec.Struct, frozen=True, kw_only=True):
    """The entries that stopped a dispatch, because their target refuses them, and the `untried` entries."""

    refused: tuple["RefusedEntry", ...] = ()
    untried: tuple[Entry, ...] = ()


class RefusedEntry(NamedTuple):
    """An entry that its target will always refuse, with the error: `QueueGone` if the target doesn't exist."""

    entry: Entry
    fault: DestinationFault


@dataclass(slots=True, kw_only=True)
class Dispatcher:
    """Sends a batch's entries. `failures` gets the source messages that must not be deleted, by position.

    Messages are deleted only after sending: those without a failure may be deleted. In FIFO queues a failed message
    holds back its successors in its group, for every target: a retry that is routed to another target would otherwise
    arrive there after its successors. Other groups continue.

    Requests to different targets run in parallel on the `executor`; requests to one target run in order, unless
    `parallel_per_target` is set. A refusal by an `optional` target is no failure: the caller chooses another target.
    """

    fifo: bool
    send: Send
    executor: Executor | None  # With None, requests run one after the other.
    parallel_per_target: bool = False
    optional: Container[str] = ()
    may_go_on: Callable[[], bool] | None = None  # Called before each request; False stops sending.
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
        rounds: Sequence[Round] = build_fifo_rounds(new) if self.fifo else (build_standard_round(new),)
        for number, requests in enumerate(rounds):
            refused = [entry for lane in self._send_in_parallel(requests) for entry in lane]
            if refused:
                later = [entry for round_ in rounds[number + 1 :] for request in round_ for entry in request.entries]
                held_back = [entry.entry for entry in refused if isinstance(entry.fault, HeldBack)]
                return DispatchStop(
                    refused=tuple(entry for entry in refused if not isinstance(entry.fault, HeldBack)),
                    untried=(*held_back, *later),
                )
        return DispatchStop()

    def fail(self, entry: Entry, fault: DestinationFault) -> None:
        """Record that an entry wasn't sent, so that its source message is redelivered."""
        self.failures[entry.position] = fault
        group = entry.outgoing.group_id
        self._first_failed[group] = min(entry.position, self._first_failed.get(group, entry.position))

    def _send_in_parallel(self, requests: Round) -> Iterable[list[RefusedEntry]]:
        sequences: dict[object, list[Request]] = {}
        for number, request in enumerate(requests):
            sequences.setdefault(number if self.parallel_per_target else request.target, []).append(request)
        if self.executor is None or len(sequences) == 1:
            return map(self._send, sequences.values())
        return self.executor.map(self._send, sequences.values())

    def _send(self, requests: Sequence[Request]) -> list[RefusedEntry]:
        """Send requests in order. Returns the entries that a target always refuses, and all later entries.

        If the target refused only single messages, the later entries are `HeldBack`.
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
            code: str | None = None  # The error's code, if the whole request failed.
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
        """Record which entries were sent or failed. Returns the entries that an optional target always refuses."""
        always_refused: list[RefusedEntry] = []
        for place, entry in enumerate(request.entries):
            if str(place) in refused:
                reason = refused[str(place)]
                # The code may start with the prefix of SQS's query protocol.
                said = (reason.partition(":")[0] if code is None else code).removeprefix("AWS.SimpleQueueService.")
                if request.target in self.optional and said in REFUSALS:
                    always_refused.append(RefusedEntry(entry, NotDelivered(reason)))
                else:
                    self.fail(entry, NotDelivered(reason))
            else:
                self.sent.append(entry)
        return always_refused

    def _remove_held_back(self, request: Request) -> Request | None:
        """Remove held-back entries from the request and record them as failed. Returns None if no entry remains."""
        if not self.fifo:
            return request
        remaining: list[Entry] = []
        for entry in request.entries:
            first = self._first_failed.get(entry.outgoing.group_id)
            if first is None or entry.position <= first:
                remaining.append(entry)
            elif entry.position not in self.failures:
                self.fail(entry, HeldBack(HELD_BACK))
        return Request(target=request.target, entries=tuple(remaining)) if remaining else None
