"""Batches regrouped and sent: within SQS's limits, in order, nothing lost, and what failed is said."""

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.batches import (
    MAX_ENTRIES,
    OUT_OF_TIME,
    Dispatcher,
    DispatchStop,
    Entry,
    Request,
    build_fifo_rounds,
    build_standard_round,
)
from sluice.errors import CallFailed, DestinationFault, HeldBack, NotDelivered, NotReached, QueueGone
from sluice.message import MAX_MESSAGE_BYTES, Outgoing


def entry(position: int, target: str, *, group: str | None = None, size: int = 1) -> Entry:
    return Entry(
        position=position, target=target, outgoing=Outgoing(body=f"{position}".ljust(size, "x"), group_id=group)
    )


def positions(request: Request) -> list[int]:
    return [one.position for one in request.entries]


ENTRIES = st.lists(
    st.tuples(
        st.lists(st.sampled_from("ABM"), min_size=1, max_size=3, unique=True),
        st.sampled_from("gh"),
        st.sampled_from([1, 100, 300_000, MAX_MESSAGE_BYTES]),
    ),
    max_size=40,
).map(
    lambda rows: [
        entry(position, target, group=group, size=size)
        for position, (targets, group, size) in enumerate(rows)
        for target in targets
    ]
)


@given(ENTRIES)
def test_requests_keep_to_the_limits_lose_nothing_and_keep_the_order(entries: list[Entry]) -> None:
    requests = build_standard_round(entries)
    for request in requests:
        assert 1 <= len(request.entries) <= MAX_ENTRIES
        assert sum(one.outgoing.size for one in request.entries) <= MAX_MESSAGE_BYTES
    for target in "ABM":
        sent = [one for request in requests if request.target == target for one in request.entries]
        assert sent == [one for one in entries if one.target == target]


def test_no_request_could_have_taken_the_next_one_in() -> None:
    requests = build_standard_round([entry(n, "A", size=MAX_MESSAGE_BYTES // 4) for n in range(9)])
    assert [positions(request) for request in requests] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert [len(request.entries) for request in build_standard_round(entry(n, "A") for n in range(25))] == [10, 10, 5]


def test_entries_are_numbered_within_their_request() -> None:
    (request,) = build_standard_round([entry(7, "A"), entry(9, "A")])
    assert [entry["Id"] for entry in request.api()] == ["0", "1"]


@given(ENTRIES)
def test_fifo_rounds_lose_nothing_and_keep_each_groups_order_across_receivers(entries: list[Entry]) -> None:
    rounds = build_fifo_rounds(entries)
    sent = [one for requests in rounds for request in requests for one in request.entries]
    assert sorted(sent, key=repr) == sorted(entries, key=repr)
    for target in "ABM":
        for group in "gh":
            of_both = [one.position for one in sent if one.target == target and one.outgoing.group_id == group]
            assert of_both == sorted(of_both)
    for requests in rounds:
        targets: defaultdict[tuple[str | None, int], set[str]] = defaultdict(set)
        for request in requests:
            for one in request.entries:
                targets[one.outgoing.group_id, one.position].add(request.target)
        for group in "gh":
            assert len({frozenset(of_one) for (of, _), of_one in targets.items() if of == group}) <= 1


def test_one_group_of_a_fifo_queue_comes_to_each_receiver_in_order() -> None:
    takers = dict(zip([10, 20, 30, 40, 50, 60], "ABMMBA", strict=True))
    rounds = build_fifo_rounds(entry(position, target, group="g") for position, target in takers.items())
    assert [[(request.target, positions(request)) for request in requests] for requests in rounds] == [
        [("A", [10])],
        [("B", [20])],
        [("M", [30, 40])],
        [("B", [50])],
        [("A", [60])],
    ]


@dataclass
class Sends:
    """What arrived, in order; entries at `failing` positions are refused, targets that are `gone` don't exist."""

    failing: AbstractSet[int] = frozenset()
    gone: AbstractSet[str] = frozenset()
    arrived: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, target: str, entries: Sequence[dict[str, Any]]) -> dict[str, str]:
        if target in self.gone:
            raise QueueGone(target)
        refused = {each["Id"]: "by script" for each in entries if int(each["MessageBody"].rstrip("x")) in self.failing}
        self.arrived += [(target, each["MessageBody"].rstrip("x")) for each in entries if each["Id"] not in refused]
        return refused


def dispatcher(send: Sends, *, fifo: bool) -> Dispatcher:
    return Dispatcher(fifo=fifo, send=send, executor=None)


@given(ENTRIES, st.data())
def test_a_failed_message_holds_back_its_group_and_no_other(entries: list[Entry], data: st.DataObject) -> None:
    failing = set(data.draw(st.lists(st.sampled_from(range(40)), max_size=3)))
    batch = dispatcher(send := Sends(failing), fifo=True)
    batch.dispatch(entries)
    arrived = batch.sent
    assert send.arrived == [(one.target, f"{one.position}") for one in arrived]
    first = {
        group: min(
            (one.position for one in entries if one.outgoing.group_id == group and one.position in failing),
            default=None,
        )
        for group in "gh"
    }
    for one in entries:
        first_failed = first[one.outgoing.group_id or ""]
        if first_failed is None or one.position < first_failed:
            assert one.position not in batch.failures
            assert one in arrived
        elif one.position > first_failed and one not in arrived:
            assert type(batch.failures[one.position]) in {HeldBack, NotDelivered}
    for one in arrived:
        # What another receiver of its group failed to get was in an earlier round: nothing of the group went after it.
        first_failed = first[one.outgoing.group_id or ""]
        if first_failed is not None and one.position > first_failed:
            assert {same.target for same in entries if same.position == first_failed} == {
                same.target for same in entries if same.position == one.position
            }


def test_a_failed_message_of_a_standard_queue_holds_back_none() -> None:
    batch = dispatcher(Sends({0}), fifo=False)
    batch.dispatch([entry(0, "A"), entry(1, "A")])
    assert {position: str(fault) for position, fault in batch.failures.items()} == {0: "by script"}
    assert batch.sent == [entry(1, "A")]


@given(ENTRIES, st.sets(st.sampled_from("ABM")), st.booleans())
def test_a_dispatch_stops_where_a_target_is_gone_and_goes_on_without_repeating(
    entries: list[Entry], gone: set[str], fifo: bool
) -> None:
    batch = dispatcher(send := Sends(gone=gone), fifo=fifo)
    lost: list[Entry] = []
    left: Sequence[Entry] = entries
    while left:
        stopped = batch.dispatch(left)
        assert stopped.refused or not stopped.untried
        assert {type(each.fault) for each in stopped.refused} <= {QueueGone}
        lost += (each.entry for each in stopped.refused)
        left = stopped.untried
    assert sorted(lost, key=repr) == sorted((one for one in entries if one.target in gone), key=repr)
    assert len(send.arrived) == len(entries) - len(lost)
    assert batch.dispatch(one for one in entries if one.target not in gone) == DispatchStop()
    assert len(send.arrived) == len(entries) - len(lost)


def test_requests_to_one_target_go_side_by_side_only_where_they_may() -> None:
    lanes: list[int] = []

    class Counting(Executor):
        def map(self, call: Any, lane: Any, **_: Any) -> Any:  # type: ignore[override]  # one lane of arguments
            lanes.append(len(lane))
            return [call(each) for each in lane]

    for parallel_per_target in (False, True):
        each = Dispatcher(fifo=False, send=Sends(), executor=Counting(), parallel_per_target=parallel_per_target)
        each.dispatch(entry(position, target) for position in range(25) for target in "AB")
    assert lanes == [2, 6]


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="In one request to a FIFO queue a message that fails is overtaken by the next of its group",
)
def test_a_message_that_fails_in_a_request_is_not_overtaken_by_its_group() -> None:
    """SQS decides entry by entry, and the one that it failed comes again after the rest of the request."""
    came: list[str] = []
    luck = [{"0": "InternalError"}, {}]

    def send(_: str, entries: Sequence[dict[str, Any]]) -> dict[str, str]:
        refused = luck.pop(0) if luck else {}
        came.extend(each["MessageBody"] for each in entries if each["Id"] not in refused)
        return refused

    left = [entry(position, "A", group="g") for position in range(3)]
    while left:
        dispatcher = Dispatcher(fifo=True, send=send, executor=None)
        dispatcher.dispatch(left)
        left = [each for each in left if each.position in dispatcher.failures]
    assert came == ["0", "1", "2"]


def refusing(target: str, fault: DestinationFault | str, sent: list[str]) -> Any:
    """A target that refuses its first entry, or all of a request."""

    def send(name: str, entries: Sequence[dict[str, Any]]) -> dict[str, str]:
        sent.append(name)
        if name != target:
            return {}
        if isinstance(fault, DestinationFault):
            raise fault
        return {"0": fault}

    return send


REFUSALS: list[DestinationFault | str] = [
    CallFailed("SendMessageBatch", "AccessDenied", "no"),
    CallFailed("SendMessageBatch", "KMS.DisabledException", "no"),
    CallFailed("SendMessageBatch", "AWS.SimpleQueueService.BatchRequestTooLong", "no"),
    "InvalidParameterValue: Message must be shorter than 1024 bytes",
]
FAILURES: list[DestinationFault | str] = [
    CallFailed("SendMessageBatch", "RequestThrottled", "no"),
    CallFailed("SendMessageBatch", "ExpiredToken", "no"),
    CallFailed("SendMessageBatch", "KmsThrottled", "no"),
    NotDelivered("AccessDenied"),  # whatever it is: no answer of AWS's
    "InternalError: no",
]


@pytest.mark.parametrize("fault", REFUSALS)
def test_what_an_optional_target_refuses_for_good_is_given_back(fault: DestinationFault | str) -> None:
    sent: list[str] = []
    batch = Dispatcher(fifo=False, send=refusing("A", fault, sent), executor=None, optional={"A"})
    stopped = batch.dispatch([entry(0, "A"), entry(1, "M")])
    assert [(lost.entry, type(lost.fault)) for lost in stopped.refused] == [(entry(0, "A"), NotDelivered)]
    assert (batch.failures, batch.sent) == ({}, [entry(1, "M")])


@pytest.mark.parametrize("fault", FAILURES)
def test_what_fails_for_now_is_a_failure_at_an_optional_target_too(fault: DestinationFault | str) -> None:
    batch = Dispatcher(fifo=False, send=refusing("A", fault, []), executor=None, optional={"A"})
    assert batch.dispatch([entry(0, "A"), entry(1, "M")]) == DispatchStop()
    assert (list(batch.failures), batch.sent) == ([0], [entry(1, "M")])


@pytest.mark.parametrize("fault", REFUSALS)
def test_what_another_target_refuses_is_a_failure(fault: DestinationFault | str) -> None:
    batch = Dispatcher(fifo=False, send=refusing("M", fault, []), executor=None, optional={"A"})
    assert batch.dispatch([entry(0, "A"), entry(1, "M")]) == DispatchStop()
    assert (list(batch.failures), batch.sent) == ([1], [entry(0, "A")])


def test_a_target_that_refuses_is_asked_once() -> None:
    sent: list[str] = []
    batch = Dispatcher(fifo=False, send=refusing("A", REFUSALS[0], sent), executor=None, optional={"A"})
    stopped = batch.dispatch([entry(position, "A") for position in range(25)])
    assert (sent, len(stopped.refused)) == (["A"], 25)


@pytest.mark.parametrize("fifo", [False, True])
def test_what_comes_after_a_message_that_its_target_refuses_is_not_refused_with_it(fifo: bool) -> None:
    """The target refuses one message, by its size, and not the others, for which there are requests of their own."""
    batch = Dispatcher(fifo=fifo, send=refusing("A", REFUSALS[-1], []), executor=None, optional={"A"})
    stopped = batch.dispatch([entry(position, "A", group="g") for position in range(25)])
    assert [(each.entry.position, str(each.fault)) for each in stopped.refused] == [(0, str(REFUSALS[-1]))]
    assert [each.position for each in stopped.untried] == list(range(10, 25))
    assert [each.position for each in batch.sent] == list(range(1, 10))


@pytest.mark.parametrize("fifo", [False, True])
def test_no_request_is_begun_when_the_time_is_up(fifo: bool) -> None:
    left = [True, True, False]
    sent: list[str] = []
    batch = Dispatcher(
        fifo=fifo, send=refusing("", "", sent), executor=None, may_go_on=lambda: left.pop(0) if left else False
    )
    batch.dispatch([entry(position, "M", group="g") for position in range(40)])
    assert (len(sent), len(batch.sent)) == (2, 20)
    assert {position: str(fault) for position, fault in batch.failures.items() if type(fault) is NotReached} == (
        dict.fromkeys(range(20, 30) if fifo else range(20, 40), OUT_OF_TIME)
    )
    assert all(isinstance(fault, HeldBack) for fault in batch.failures.values())
    assert batch.failures.keys() == set(range(20, 40))
