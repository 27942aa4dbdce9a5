"""What one session's filter or queue may cost the others of a batch. Time is the test's, but for what S3 takes."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.errors import CallFailed, HeldBack, NotDelivered, NotReached
from sluice.message import Message
from sluice.splitting.filters.jq import TIME_LIMIT_S, NotRunning, ProgramTimedOut
from sluice.splitting.filters.texts import S3Object
from sluice.splitting.filters.values import Filter, Mode, Share
from sluice.splitting.routing.router import Router
from sluice.splitting.settings import SplitConfig
from sluice.splitting.splitter import (
    DECIDED_WITHIN_S,
    FILTER_BUDGET_S,
    REPEATED_AFTER_S,
    SENT_WITHIN_S,
    SKIPPED_S,
    Routes,
    SessionCircuitBreaker,
    SplitOutcome,
    split,
)
from tests.splitting_fakes import FakeSplitQueues
from tests.unit.splitting.test_splitter import FIFO, STANDARD, message, share

S3 = SplitConfig(queue_id="q", source="q", main="main", s3_event=True)
NAMES_METADATA = '.S3Metadata.author == "me"'


@dataclass
class Splitter:
    """A splitter's environment. A jq program takes the seconds that it is, `endless` its time limit; all say no."""

    shares: Sequence[Share]
    queues: FakeSplitQueues = field(default_factory=FakeSplitQueues)
    now: float = 0.0
    told: list[tuple[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    head: Callable[[S3Object], Mapping[str, str]] = lambda _: {}
    starts: bool = True
    started: int = 0

    def __post_init__(self) -> None:
        self.circuit_breaker = SessionCircuitBreaker(
            clock_s=lambda: self.now, cancel=lambda *said: self.told.append(said)
        )

    def decide(self, program: str, document: str) -> bool | None:
        self.asked.append(program)
        if program.startswith("endless"):
            self.now += TIME_LIMIT_S
            raise ProgramTimedOut("by script")
        if "S3Metadata" in program:
            return '"S3Metadata": {"author": "me"}' in document
        self.now += float(program)
        return False

    def ensure_started(self) -> None:
        self.started += 1
        if not self.starts:
            raise NotRunning("by script")

    def metadata(self, found: S3Object) -> Mapping[str, str]:
        self.heads.append(found.key)
        return self.head(found)

    def take(self, messages: Sequence[Message], queue: SplitConfig = STANDARD) -> SplitOutcome:
        routes = Routes(
            router=Router.build(self.shares, decide=self.decide, ensure_started=self.ensure_started),
            queues={each.session_id: f"queue-{each.session_id}" for each in self.shares},
        )
        with ThreadPoolExecutor(4) as executor:
            return split(
                messages,
                queue,
                routes,
                send=self.queues.send_batch,
                executor=executor,
                metadata=self.metadata,
                circuit_breaker=self.circuit_breaker,
                began_s=self.now,
            )


def others(number: int, *, group: str | None = None) -> list[Message]:
    """Messages that no session of these tests wants."""
    return [message(f"c{place}", group=group) for place in range(number)]


def bodies(messages: Sequence[Message]) -> list[str]:
    return [each.body for each in messages]


# Filters


@pytest.mark.parametrize(
    ("bad", "reason", "asked"),
    [
        (share("bad", jq="endless"), "FilterTimedOut", ["endless"]),
        (share("bad", pattern="(", at=1), "PatternFailed", []),
        (
            Share(
                session_id="bad",
                key="k",
                started_at_ms=0,
                filter=Filter(attributes=(("client", "^(a|aa)+$"),)),
            ),
            "PatternTimedOut",
            [],
        ),
    ],
)
def test_a_filter_that_times_out_is_out_of_the_batch_and_its_session_cancelled(
    bad: Share, reason: str, asked: list[str]
) -> None:
    splitter = Splitter([bad])
    messages = [message(f"{place}", client="a" * 60 + "!") for place in range(50)]
    if reason == "PatternFailed":
        messages = [message(f"{place}", client="(") for place in range(50)]
    outcome = splitter.take(messages)
    assert (splitter.queues.bodies("main"), outcome.failures) == (bodies(messages), {})
    assert (splitter.told, splitter.asked) == ([("bad", reason)], asked)
    assert outcome.counts["FilterFaults"] == 1


def test_control_is_told_before_anything_is_sent() -> None:
    splitter = Splitter([share("bad", jq="endless")])
    sent: list[int] = []
    splitter.circuit_breaker.cancel = lambda *_: sent.append(len(splitter.queues.calls))
    splitter.take(others(50))
    assert sent == [0]


def test_who_was_cancelled_costs_later_batches_nothing_until_it_is_tried_again() -> None:
    splitter = Splitter([share("bad", jq="endless")])
    for _ in range(5):
        assert splitter.take(others(10)).failures == {}
    assert splitter.asked == ["endless"]
    splitter.now += SKIPPED_S
    splitter.take(others(10))
    assert splitter.asked == ["endless"] * 2


def test_a_slow_filter_is_out_of_the_batch_when_its_budget_is_spent() -> None:
    splitter = Splitter([share("slow", jq="0.5")])
    outcome = splitter.take(others(50))
    assert len(splitter.asked) == FILTER_BUDGET_S / 0.5 + 1
    assert (len(splitter.queues.bodies("main")), outcome.failures) == (50, {})
    assert outcome.counts["FilterFaults"] == 1
    assert splitter.told == []


def test_who_is_over_the_budget_again_is_cancelled() -> None:
    splitter = Splitter([share("slow", jq="0.5")])
    splitter.take(others(50))
    splitter.now += REPEATED_AFTER_S
    splitter.take(others(50))
    assert splitter.told == [("slow", "FilterTooSlow")]


def test_a_filter_within_its_budget_is_asked_of_all_messages() -> None:
    splitter = Splitter([share("A", jq="0.001"), share("B", jq="0.0015")])
    assert splitter.take(others(1_000)).counts["FilterFaults"] == 0
    assert len(splitter.asked) == 2_000


def test_what_is_decided_is_sent_before_the_rest_is() -> None:
    splitter = Splitter([share(f"{number}", jq=f"0.{number}") for number in range(2, 6)])
    sent: list[int] = []
    decide = splitter.decide

    def counted(program: str, document: str) -> bool | None:
        sent.append(len(splitter.queues.bodies("main")))
        return decide(program, document)

    splitter.decide = counted  # type: ignore[method-assign]  # as the program is asked
    splitter.take(others(100))
    assert sent == sorted(sent)
    assert sent[0] == 0
    assert 0 < sent[-1] < 100
    assert splitter.queues.bodies("main") == bodies(others(100))


def test_what_isnt_decided_in_time_comes_again_and_is_never_a_dead_letter() -> None:
    """Thirty sessions whose programs never end, each with one of its own: a batch gets rid of ten of them."""
    splitter = Splitter([share(f"{number}", jq=f"endless{number}") for number in range(30)])
    left = others(20)
    for batch in range(4):
        began = splitter.now
        outcome = splitter.take(left)
        assert splitter.now - began <= DECIDED_WITHIN_S + TIME_LIMIT_S
        assert all(type(fault) is NotReached for fault in outcome.failures.values())
        assert all(isinstance(fault, HeldBack) for fault in outcome.failures.values())
        left = [left[position] for position in outcome.failures]
        assert len(splitter.told) == min(30, 10 * (batch + 1))
    assert left == []
    assert sorted(splitter.queues.bodies("main")) == sorted(bodies(others(20)))


def test_messages_that_no_filter_is_asked_about_go_on_when_the_time_is_up() -> None:
    shares = [
        Share(
            session_id=f"{number}",
            key="k",
            started_at_ms=number,
            filter=Filter(attributes=(("client", "^a$"),), jq=f"endless{number}"),
        )
        for number in range(20)
    ]
    splitter = Splitter(shares)
    outcome = splitter.take([message("a1"), *others(5)])
    assert list(outcome.failures) == [0]
    assert splitter.queues.bodies("main") == bodies(others(5))


def test_a_fifo_group_waits_for_its_message_that_isnt_decided_in_time() -> None:
    splitter = Splitter([share(f"{number}", jq=f"endless{number}") for number in range(12)])
    messages = [message("a1", group="g"), message("c2", group="g"), message("c3", group="g")]
    outcome = splitter.take(messages, FIFO)
    assert (sorted(outcome.failures), splitter.queues.bodies("main")) == ([0, 1, 2], [])
    left = [messages[position] for position in sorted(outcome.failures)]
    assert splitter.take(left, FIFO).failures == {}
    assert splitter.queues.bodies("main") == ["a1", "c2", "c3"]


def test_where_programs_cant_be_run_their_sessions_are_passed_over_and_not_cancelled() -> None:
    splitter = Splitter([share("A", jq="0.1"), share("B", "a"), share("C", jq="0.2", at=-1)], starts=False)
    outcome = splitter.take([message("a1"), message("c2")])
    assert splitter.started == 1  # it takes seconds until it is known not to
    assert (splitter.queues.bodies("queue-B"), splitter.queues.bodies("main")) == (["a1"], ["c2"])
    assert (outcome.failures, splitter.told, outcome.counts["FilterFaults"]) == ({}, [], 2)


def test_what_isnt_sent_in_time_comes_again() -> None:
    splitter = Splitter([])
    send = splitter.queues.send_batch

    def slow(name: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        splitter.now += 3
        return send(name, entries)

    splitter.queues.send_batch = slow  # type: ignore[method-assign]  # a slow SQS
    outcome = splitter.take(others(100))
    assert splitter.now <= SENT_WITHIN_S + 3
    assert len(splitter.queues.bodies("main")) == 60
    assert {type(fault) for fault in outcome.failures.values()} == {NotReached}


# Queues


@pytest.mark.parametrize("mode", list(Mode))
def test_a_queue_that_refuses_is_asked_once_and_its_session_cancelled(mode: Mode) -> None:
    splitter = Splitter([share("A", at=1, mode=mode), share("B", at=2)], FakeSplitQueues(refusing={"queue-A"}))
    messages = [message(f"a{place}") for place in range(50)]
    outcome = splitter.take(messages)
    assert (sorted(splitter.queues.bodies("queue-B")), outcome.failures) == (sorted(bodies(messages)), {})
    assert splitter.queues.calls.count(("send", "queue-A")) == 1
    assert splitter.told == [("A", "QueueRefused: send: AccessDenied: by script")]


def test_a_queue_that_refuses_is_out_of_the_slices_that_follow() -> None:
    splitter = Splitter([share("slow", jq="0.3", at=0), share("A", at=1)], FakeSplitQueues(refusing={"queue-A"}))
    assert splitter.take([message(f"a{place}") for place in range(50)]).failures == {}
    assert splitter.queues.calls.count(("send", "queue-A")) == 1
    assert len(splitter.queues.bodies("main")) == 50


def test_a_group_keeps_its_order_when_its_sessions_queue_refuses() -> None:
    splitter = Splitter([share("A")], FakeSplitQueues(refusing={"queue-A"}))
    messages = [message(body, group="g") for body in ("a1", "c2", "a3", "c4")]
    assert splitter.take(messages, FIFO).failures == {}
    assert splitter.queues.bodies("main") == ["a1", "c2", "a3", "c4"]


def test_main_that_refuses_leaves_its_messages_on_the_source() -> None:
    splitter = Splitter([share("A")], FakeSplitQueues(refusing={"main"}))
    outcome = splitter.take([message("a1"), message("c2")])
    assert {position: type(fault) for position, fault in outcome.failures.items()} == {1: NotDelivered}
    assert splitter.told == []


def test_a_session_whose_queue_stays_gone_is_cancelled() -> None:
    """SQS may not find a queue in its first second: so it is looked for twice."""
    splitter = Splitter([share("A")], FakeSplitQueues(gone={"queue-A"}))
    for after_s, told in ((0.0, 0), (0.5, 0), (REPEATED_AFTER_S, 1)):
        splitter.now += after_s
        assert splitter.take([message("a1")]).failures == {}
        assert len(splitter.told) == told
    assert splitter.told == [("A", "QueueGone")]


# S3


def event(key: str, *, client: str = "a", group: str | None = None) -> Message:
    """An S3 event about one object."""
    named = {"eventSource": "aws:s3", "s3": {"bucket": {"name": "b"}, "object": {"key": key}}}
    body = json.dumps({"Records": [named]})
    return message(body, client=client, group=group)


def of_author(program: str = NAMES_METADATA, pattern: str = "^a$") -> Share:
    asked = Filter(attributes=(("client", pattern),), jq=program)
    return Share(session_id="S", key="k", started_at_ms=0, filter=asked)


@pytest.mark.parametrize("shares", [[], [share("A")], [of_author("0.0")], [of_author(pattern="^b$")]])
def test_s3_isnt_asked_where_no_program_wants_its_answer(shares: list[Share]) -> None:
    splitter = Splitter(shares)
    assert splitter.take([event("k1"), event("k2")], S3).failures == {}
    assert splitter.heads == []


def test_a_program_sees_the_metadata_that_it_names() -> None:
    splitter = Splitter([of_author()], head=lambda found: {"author": "me"} if found.key == "k2" else {})
    messages = [event("k1"), event("k2"), message("a no event")]
    assert splitter.take(messages, S3).failures == {}
    assert splitter.queues.bodies("queue-S") == [messages[1].body]
    assert sorted(splitter.queues.bodies("main")) == sorted([messages[0].body, messages[2].body])
    assert sorted(splitter.heads) == ["k1", "k2"]


def test_s3_is_asked_side_by_side() -> None:
    together = threading.Barrier(4, timeout=20)

    def head(_: S3Object) -> Mapping[str, str]:
        together.wait()
        return {}

    splitter = Splitter([of_author()], head=head)
    assert splitter.take([event(f"k{number}") for number in range(8)], S3).failures == {}


def test_an_object_that_s3_fails_on_fails_alone() -> None:
    def head(found: S3Object) -> Mapping[str, str]:
        if found.key == "bad":
            raise CallFailed("HeadObject", "500", "InternalError")
        return {"author": "me"}

    splitter = Splitter([of_author()], head=head)
    outcome = splitter.take([event("k1"), event("bad"), event("k3")], S3)
    assert {position: type(fault) for position, fault in outcome.failures.items()} == {1: NotDelivered}
    assert "InternalError" in str(outcome.failures[1])
    assert len(splitter.queues.bodies("queue-S")) == 2


def test_a_group_waits_for_its_event_that_s3_fails_on() -> None:
    def head(found: S3Object) -> Mapping[str, str]:
        raise CallFailed("HeadObject", "500", found.key)

    splitter = Splitter([of_author()], head=head)
    queue = SplitConfig(queue_id="q", source="q.fifo", main="main", s3_event=True)
    outcome = splitter.take([event("k", group="g"), message("c2", group="g"), message("c3", group="h")], queue)
    assert {position: type(fault) for position, fault in outcome.failures.items()} == {0: NotDelivered, 1: HeldBack}
    assert splitter.queues.bodies("main") == ["c3"]


def test_what_s3_doesnt_answer_in_time_comes_again_and_the_rest_goes_on() -> None:
    go_on = threading.Event()

    def head(found: S3Object) -> Mapping[str, str]:
        if found.key == "hangs":
            go_on.wait(20)
        return {}

    splitter = Splitter([of_author()], head=head)
    splitter.circuit_breaker.clock_s = Passing(splitter, by_s=(DECIDED_WITHIN_S - 1) / 8)
    timer = threading.Timer(2, go_on.set)
    timer.start()
    outcome = splitter.take([event("hangs"), event("k2"), event("k3")], S3)
    assert {position: type(fault) for position, fault in outcome.failures.items()} == {0: NotReached}
    assert len(splitter.queues.bodies("main")) == 2
    go_on.set()
    timer.cancel()


@dataclass
class Passing:
    """A clock that goes on with each look, up to a second before the time for deciding is up."""

    splitter: Splitter
    by_s: float

    def __call__(self) -> float:
        self.splitter.now = min(self.splitter.now + self.by_s, DECIDED_WITHIN_S - 1)
        return self.splitter.now
