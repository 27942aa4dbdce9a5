"""A batch through the splitter: whoever the rules name has a message before it counts as done, whatever goes wrong."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.errors import HeldBack
from sluice.message import Message, Value
from sluice.splitting.filters.jq import ProgramTimedOut
from sluice.splitting.filters.values import Filter, Mode, Share
from sluice.splitting.routing.router import Router
from sluice.splitting.settings import SplitConfig
from sluice.splitting.splitter import Routes, SessionCircuitBreaker, SplitOutcome, split
from tests.splitting_fakes import FakeSplitQueues

EXECUTOR = ThreadPoolExecutor(4)
STANDARD = SplitConfig(queue_id="q", source="q", main="main")
FIFO = SplitConfig(queue_id="q", source="q.fifo", main="main")


def share(name: str, pattern: str = "a", *, at: int = 0, mode: Mode = Mode.STEAL, jq: str | None = None) -> Share:
    filter_ = Filter(attributes=() if jq else (("client", f"^{pattern}$"),), jq=jq)
    return Share(session_id=name, key=f"key-{name}", started_at_ms=at, filter=filter_, mode=mode)


def message(body: str, *, client: str | None = None, group: str | None = None) -> Message:
    """`a1` is client a's, unless said."""
    return Message(
        message_id=f"id-{body}",
        body=body,
        attributes={"client": Value("String", client or body[0])},
        system={"MessageGroupId": group} if group else {},
    )


def endless(program: str, document: str) -> bool | None:
    raise ProgramTimedOut("by script")


def run(
    messages: Sequence[Message],
    queues: FakeSplitQueues,
    *shares: Share,
    queue: SplitConfig = STANDARD,
    decide=endless,
    executor: Executor = EXECUTOR,
    circuit_breaker: SessionCircuitBreaker | None = None,
) -> SplitOutcome:
    routes = Routes(
        router=Router.build(shares, decide=decide),
        queues={each.session_id: f"queue-{each.session_id}" for each in shares},
    )
    circuit_breaker = circuit_breaker or SessionCircuitBreaker(clock_s=lambda: 0.0, cancel=lambda _, __: None)
    return split(
        messages,
        queue,
        routes,
        send=queues.send_batch,
        executor=executor,
        metadata=lambda _: {},
        circuit_breaker=circuit_breaker,
        began_s=0.0,
    )


def test_each_message_goes_to_its_session_or_to_main() -> None:
    queues = FakeSplitQueues()
    outcome = run([message("a1"), message("b2"), message("c3")], queues, share("A"), share("B", "b"))
    assert [queues.bodies(name) for name in ("queue-A", "queue-B", "main")] == [["a1"], ["b2"], ["c3"]]
    assert (outcome.failures, outcome.forwarded) == ({}, {"A": 1, "B": 1})
    assert outcome.counts["MessagesUnmatched"] == 1
    assert queues.messages["queue-A"][0].attributes["sluice-session"] == Value("String.sluice", "key-A")
    assert "sluice-session" not in queues.messages["main"][0].attributes


def test_what_went_to_sessions_is_told_by_session_with_the_ids_of_the_source() -> None:
    """Not what was only to go there: it comes again, or went to somebody else."""
    queues = FakeSplitQueues(refused={"b2"}, gone={"queue-C"})
    shares = share("A", mode=Mode.MIRROR), share("B", "b", at=1), share("C", "c"), share("D", at=1)
    outcome = run([message("a1"), message("b2"), message("c3"), message("a4"), message("b5")], queues, *shares)
    told = {each.session: (each.key, each.mode, set(each.messages)) for each in outcome.routed}
    assert told == {
        "A": ("key-A", Mode.MIRROR, {"id-a1", "id-a4"}),
        "B": ("key-B", Mode.STEAL, {"id-b5"}),
        "D": ("key-D", Mode.STEAL, {"id-a1", "id-a4"}),
    }


def test_only_the_message_that_is_refused_is_reported() -> None:
    queues = FakeSplitQueues(refused={"c2"})
    outcome = run([message("c1"), message("c2"), message("c3")], queues)
    assert queues.bodies("main") == ["c1", "c3"]
    assert {position: str(fault) for position, fault in outcome.failures.items()} == {1: "InternalError: by script"}


def test_a_call_that_fails_reports_what_it_was_to_send_and_nothing_else() -> None:
    queues = FakeSplitQueues(failing={"queue-A"})
    outcome = run([message("a1"), message("c2")], queues, share("A"))
    assert queues.bodies("main") == ["c2"]
    assert list(outcome.failures) == [0]


def test_what_a_vanished_session_was_to_get_goes_to_the_next_that_matches() -> None:
    queues = FakeSplitQueues(gone={"queue-A"})
    outcome = run([message("a1")], queues, share("A", at=1), share("B", at=2))
    assert queues.bodies("queue-B") == ["a1"]
    assert outcome.failures == {}


def test_without_another_match_it_goes_to_main() -> None:
    queues = FakeSplitQueues(gone={"queue-A", "queue-B"})
    outcome = run([message("a1"), message("b2"), message("a3")], queues, share("A"), share("B", "b"))
    assert sorted(queues.bodies("main")) == ["a1", "a3", "b2"]
    assert outcome.failures == {}


def test_without_main_messages_stay_on_the_source() -> None:
    queues = FakeSplitQueues(gone={"main"})
    outcome = run([message("a1"), message("c2")], queues, share("A"))
    assert queues.bodies("queue-A") == ["a1"]
    assert list(outcome.failures) == [1]


def test_a_mirroring_session_gets_a_copy() -> None:
    queues = FakeSplitQueues()
    outcome = run([message("a1")], queues, share("A", mode=Mode.MIRROR))
    assert (queues.bodies("queue-A"), queues.bodies("main")) == (["a1"], ["a1"])
    assert outcome.counts["MessagesMirrored"] == 1


def test_a_copy_that_fails_brings_the_message_again() -> None:
    queues = FakeSplitQueues(failing={"queue-A"})
    outcome = run([message("a1")], queues, share("A", mode=Mode.MIRROR))
    assert list(outcome.failures) == [0]


def test_a_copy_for_a_vanished_session_is_nobodys() -> None:
    queues = FakeSplitQueues(gone={"queue-A"})
    outcome = run([message("a1")], queues, share("A", mode=Mode.MIRROR))
    assert (queues.bodies("main"), outcome.failures) == (["a1"], {})


def test_a_failed_message_holds_back_its_group_and_no_other() -> None:
    queues = FakeSplitQueues(failing={"queue-A"})
    messages = [
        message("a1", group="g"),
        message("c2", group="g"),
        message("c3", group="h"),
        message("c4", group="g"),
    ]
    outcome = run(messages, queues, share("A"), queue=FIFO)
    assert queues.bodies("main") == ["c3"]
    assert outcome.failures.keys() == {0, 1, 3}
    assert [type(outcome.failures[position]) for position in (1, 3)] == [HeldBack, HeldBack]


def test_fifo_copies_are_suppressed_by_the_sources_message_id() -> None:
    queues = FakeSplitQueues()
    run([message("c1", group="g")], queues, queue=FIFO)
    assert queues.messages["main"][0].message_id == "id-c1"  # what the fake takes from the deduplication id


@pytest.mark.parametrize(
    ("receives", "since_ms", "got"), [(1, 60_000, "A"), (2, 60_000, "main"), (2, 49_500, "main"), (2, 48_000, "A")]
)
def test_what_was_received_before_goes_to_no_session_that_began_since(receives: int, since_ms: int, got: str) -> None:
    """It may have gone to main then, by a splitter that died: main suppresses it, and the session would have it too."""
    times = {"ApproximateReceiveCount": str(receives), "ApproximateFirstReceiveTimestamp": "50000"}
    again = replace(message("a1"), system={"MessageGroupId": "g", **times})
    queues = FakeSplitQueues()
    run([again], queues, replace(share("A"), since_ms=since_ms), queue=FIFO)
    assert queues.bodies("main" if got == "main" else "queue-A") == ["a1"]


def test_a_program_that_never_ends_cancels_its_session_and_hurts_no_other() -> None:
    queues, told = FakeSplitQueues(), dict[str, str]()
    circuit_breaker = SessionCircuitBreaker(clock_s=lambda: 0.0, cancel=told.__setitem__)
    shares = share("bad", jq="def f: f; f", at=1), share("A", at=2)
    outcome = run([message("a1")], queues, *shares, circuit_breaker=circuit_breaker)
    assert queues.bodies("queue-A") == ["a1"]
    assert told == {"bad": "FilterTimedOut"}
    assert outcome.failures == {}


def test_a_pattern_that_does_not_compile_any_more_is_no_match_and_hurts_no_other() -> None:
    queues = FakeSplitQueues()
    outcome = run([message("a1")], queues, share("bad", pattern="(", at=1), share("A", at=2))
    assert queues.bodies("queue-A") == ["a1"]
    assert (outcome.counts["FilterFaults"], outcome.failures) == (1, {})


NAMES = ("A", "B", "C")
CLIENTS = ("a", "b", "c")


@given(
    clients=st.lists(st.sampled_from(CLIENTS), max_size=25),
    modes=st.lists(st.sampled_from(list(Mode)), min_size=3, max_size=3),
    wanted=st.lists(st.sampled_from(CLIENTS), min_size=3, max_size=3),
    gone=st.sets(st.sampled_from([f"queue-{name}" for name in NAMES])),
    failing=st.sets(st.sampled_from(["main", *(f"queue-{name}" for name in NAMES)])),
    groups=st.lists(st.sampled_from(["g", "h"]), min_size=25, max_size=25),
    fifo=st.booleans(),
)
def test_what_is_done_is_with_all_whom_the_rules_name_and_with_nobody_else(
    *,
    clients: list[str],
    modes: list[Mode],
    wanted: list[str],
    gone: set[str],
    failing: set[str],
    groups: list[str],
    fifo: bool,
) -> None:
    """The literal oracle: down the line of sessions whose queues are there, copies on the way, until one steals."""
    shares = [share(name, wanted[n], at=n, mode=modes[n]) for n, name in enumerate(NAMES)]
    messages = [message(f"{n}", client=client, group=groups[n] if fifo else None) for n, client in enumerate(clients)]
    queues = FakeSplitQueues(gone=set(gone), failing=failing - gone)
    outcome = run(messages, queues, *shares, queue=FIFO if fifo else STANDARD)
    for position, each in enumerate(messages):
        receivers = expected(clients[position], shares, gone)
        got = {name for name in (*(f"queue-{name}" for name in NAMES), "main") if each.body in queues.bodies(name)}
        assert got <= receivers
        if position not in outcome.failures:
            assert got == receivers
    if fifo:
        for name in ("main", *(f"queue-{name}" for name in NAMES)):
            for group in ("g", "h"):
                numbers = [int(body) for body in queues.bodies(name) if groups[int(body)] == group]
                assert numbers == sorted(numbers)


def expected(client: str, shares: list[Share], gone: set[str]) -> set[str]:
    receivers = set()
    for each in shares:
        queue = f"queue-{each.session_id}"
        if queue in gone or each.filter.attributes[0][1] != f"^{client}$":
            continue
        receivers.add(queue)
        if each.mode is Mode.STEAL:
            return receivers
    return receivers | {"main"}


@pytest.mark.parametrize("number", [1, 10, 11, 250])
def test_a_target_gets_tens(number: int) -> None:
    queues = FakeSplitQueues()
    run([message(f"c{n}") for n in range(number)], queues)
    assert len(queues.calls) == -(-number // 10)


@dataclass
class Fickle(FakeSplitQueues):
    """Each call has its own luck: sent, refused in part, failed as a whole, or the queue is gone from then on."""

    luck: list[str] = field(default_factory=list)
    sends: list[tuple[str, list[str], list[str]]] = field(default_factory=list)  # queue, bodies sent, bodies refused

    def send_batch(self, name: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        match self.luck.pop() if self.luck else "sent":
            case "refused in part":
                self.refused = {entry["MessageBody"] for entry in entries[::2]}
            case "failed":
                self.failing = {name}
            case "gone" if name != "main":
                self.gone.add(name)
        try:
            refused = super().send_batch(name, entries)
        finally:
            self.refused, self.failing = set(), set()
        bodies = [entry["MessageBody"] for entry in entries]
        kept = [bodies[int(place)] for place in refused]
        self.sends.append((name, [body for body in bodies if body not in kept], kept))
        return refused


class Inline(Executor):
    """One after the other, so that luck falls the same way each time."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@given(
    clients=st.lists(st.sampled_from(CLIENTS), max_size=25),
    modes=st.lists(st.sampled_from(list(Mode)), min_size=3, max_size=3),
    wanted=st.lists(st.sampled_from(CLIENTS), min_size=3, max_size=3),
    luck=st.lists(st.sampled_from(["sent", "refused in part", "failed", "gone"]), max_size=15),
    groups=st.lists(st.sampled_from(["g", "h"]), min_size=25, max_size=25),
    fifo=st.booleans(),
)
@example(
    clients=["a", "a"],
    modes=[Mode.MIRROR, Mode.STEAL, Mode.STEAL],
    wanted=["a", "a", "a"],
    luck=["refused in part", "gone"],
    groups=["g"] * 25,
    fifo=True,
)
def test_whatever_goes_wrong_amid_a_batch_nothing_is_done_that_someone_lacks(
    *, clients: list[str], modes: list[Mode], wanted: list[str], luck: list[str], groups: list[str], fifo: bool
) -> None:
    """The literal oracle: each receiver down the line has the message, or its queue is gone by now."""
    shares = [share(name, wanted[n], at=n, mode=modes[n]) for n, name in enumerate(NAMES)]
    messages = [message(f"{n}", client=client, group=groups[n] if fifo else None) for n, client in enumerate(clients)]
    queues = Fickle(luck=list(luck))
    outcome = run(messages, queues, *shares, queue=FIFO if fifo else STANDARD, executor=Inline())
    for position, each in enumerate(messages):
        got = {name for name in (*(f"queue-{name}" for name in NAMES), "main") if each.body in queues.bodies(name)}
        if position not in outcome.failures:
            assert lacking(clients[position], shares, got, queues.gone) == []
        # Nobody has what the rules don't give them, but where who should have had it is gone.
        assert got <= expected(clients[position], shares, set()) or queues.gone
    bodies = [body for name in queues.messages for body in queues.bodies(name)]
    assert len(bodies) == len([body for _, sent, _ in queues.sends for body in sent])
    assert all(queues.bodies(name).count(body) == 1 for name in queues.messages for body in queues.bodies(name))
    if fifo:
        assert overtaken(queues.sends, groups) == []


def lacking(client: str, shares: list[Share], got: set[str], gone: set[str]) -> list[str]:
    """Who should have the message, is there, and hasn't got it."""
    missing = []
    for each in shares:
        queue = f"queue-{each.session_id}"
        if each.filter.attributes[0][1] != f"^{client}$":
            continue
        if queue not in got and queue not in gone:
            missing.append(queue)
        if each.mode is Mode.STEAL and queue in got:
            return missing
    return missing if "main" in got else [*missing, "main"]


def overtaken(sends: list[tuple[str, list[str], list[str]]], groups: list[str]) -> list[str]:
    """Messages that came to a receiver after later ones of their group."""
    latest: dict[tuple[str, str], int] = {}
    found = []
    for name, bodies, _ in sends:
        for body in bodies:
            key = name, groups[int(body)]
            found += [body] if int(body) < latest.get(key, -1) else []
            latest[key] = int(body)
    return found


@pytest.mark.parametrize("refused", [1, 5, 10])
def test_after_a_refusal_nothing_more_of_the_group_is_sent(refused: int) -> None:
    """Ten go in one request, where SQS has the say; the eleventh waits for those that were refused."""
    messages = [message(f"c{n}", group="g") for n in range(11)] + [message("other", client="c", group="h")]
    queues = FakeSplitQueues(refused={f"c{n}" for n in range(refused)})
    outcome = run(messages, queues, queue=FIFO)
    assert outcome.failures.keys() == {*range(refused), 10}
    assert isinstance(outcome.failures[10], HeldBack)
    assert "other" in queues.bodies("main")


def test_a_group_stays_in_order_when_its_session_vanishes_amid_it() -> None:
    messages = [message(body, group="g") for body in ("a1", "c2", "a3", "c4")]
    queues = FakeSplitQueues(gone={"queue-A"})
    outcome = run(messages, queues, share("A"), queue=FIFO)
    assert (queues.bodies("main"), outcome.failures) == (["a1", "c2", "a3", "c4"], {})


def test_copies_have_gone_out_once_when_the_message_is_routed_again() -> None:
    queues = FakeSplitQueues(gone={"queue-A"})
    run([message("a1")], queues, share("M", at=1, mode=Mode.MIRROR), share("A", at=2), share("B", at=3))
    assert [queues.bodies(name) for name in ("queue-M", "queue-B", "main")] == [["a1"], ["a1"], []]


def test_a_message_that_main_refuses_though_its_copy_went_out_comes_again() -> None:
    queues = FakeSplitQueues(failing={"main"})
    outcome = run([message("a1")], queues, share("M", mode=Mode.MIRROR))
    assert queues.bodies("queue-M") == ["a1"]
    assert list(outcome.failures) == [0]


def test_a_message_keeps_what_it_came_with() -> None:
    attributes = {"client": Value("String", "a"), "n": Value("Number.int", "7"), "b": Value("Binary", b"\xff")}
    queues = FakeSplitQueues()
    run([Message(message_id="m", body="\u0000 not even text", attributes=attributes)], queues, share("A"))
    [copy] = queues.messages["queue-A"]
    assert copy.body == "\u0000 not even text"
    assert copy.attributes == attributes | {"sluice-session": Value("String.sluice", "key-A")}


def test_nothing_received_is_nothing_sent() -> None:
    queues = FakeSplitQueues()
    assert run([], queues, share("A")).failures == {}
    assert queues.calls == []


def test_a_batch_of_great_messages_goes_in_requests_that_sqs_takes() -> None:
    queues = FakeSplitQueues()
    run([message("c" * 400_000 + str(n), client="c") for n in range(5)], queues)
    assert len(queues.calls) == 3
    assert len(queues.bodies("main")) == 5


def test_where_nothing_may_be_forwarded_all_is_held_back() -> None:
    queues = FakeSplitQueues()
    outcome = run([message("a1"), message("b2")], queues, share("A"), queue=SplitConfig(queue_id="q", source="q"))
    assert [type(fault) for fault in outcome.failures.values()] == [HeldBack, HeldBack]
    assert outcome.counts["MessagesFailed"] == 2
    assert queues.calls == []
