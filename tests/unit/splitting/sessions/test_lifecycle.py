"""Sessions from start to end: limits, order, and in a simulated world that nothing is lost and nothing left over."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.splitting.consumers.targets import Consumer, Consumers, LambdaTrigger
from sluice.splitting.filters.values import Filter, Mode, QueueFilter
from sluice.splitting.sessions.actions import (
    Action,
    CountMain,
    CreateQueue,
    DeleteQueue,
    PointConsumer,
    ReturnLeftovers,
    SwitchSplitter,
    find_due_actions,
)
from sluice.splitting.sessions.events import (
    HEARTBEAT_LIMIT_S,
    MOVING_SETUP_LIMIT_S,
    SETUP_LIMIT_S,
    CleanupFailed,
    ConsumerMoved,
    ConsumerPointed,
    ConsumerRefused,
    ConsumersSent,
    DrainEnded,
    Event,
    LeftoversReturned,
    MainCounted,
    QueueCreated,
    QueueDeleted,
    QueueNotCreated,
    SessionRefused,
    SessionRequested,
    SessionStopped,
    SplitterSwitched,
    TimePassed,
)
from sluice.splitting.sessions.rules import DRAIN_QUIET_S, KEEP_FAILED_S, QUEUE_IS_USED_AFTER_MS, apply
from sluice.splitting.sessions.state import (
    SPLITTER_LEASE_S,
    Phase,
    Reason,
    Registry,
    Split,
    SplitterAnnouncement,
    Status,
)

TRIGGER = LambdaTrigger(function="orders")
STEAL = QueueFilter(filter=Filter(attributes=(("a", "b"),)))
MIRROR = replace(STEAL, mode=Mode.MIRROR)
STATIC = Split(queue_id="q", source="q-source", static=True, main="q-main")
MOVING = Split(queue_id="q", source="q-source", static=False, consumer_at="q-source")
MOVING_FIFO = replace(MOVING, source="q.fifo", consumer_at="q.fifo")


# What the store notes outside of any event: a test that says it as one has it followed by the rules


@dataclass(frozen=True)
class SplitterSaw:
    """A splitter announces itself: it routes by this version."""

    splitter_id: str
    version: int

    def __call__(self, registry: Registry, now_ms: int) -> Registry:
        seen = SplitterAnnouncement(min(self.version, registry.version), now_ms)
        return replace(registry, splitters={**registry.splitters, self.splitter_id: seen})


@dataclass(frozen=True)
class SplitterGone:
    """A splitter's announcement is gone."""

    splitter_id: str

    def __call__(self, registry: Registry, now_ms: int) -> Registry:
        left = {name: seen for name, seen in registry.splitters.items() if name != self.splitter_id}
        return replace(registry, splitters=left)


@dataclass(frozen=True)
class Heartbeat:
    """A session's owner is there."""

    session_id: str

    def __call__(self, registry: Registry, now_ms: int) -> Registry:
        session = registry.sessions.get(self.session_id)
        return registry if session is None else registry.with_session(replace(session, heartbeat_at_ms=now_ms))


def registry_of(*splits: Split) -> Registry:
    return Registry(splits={split.queue_id: split for split in splits})


def start(
    session_id: str = "s", *, mode: QueueFilter = STEAL, queues: tuple[str, ...] = ("q",), **more: object
) -> SessionRequested:
    return SessionRequested(
        session_id=session_id,
        key=f"key-{session_id}",
        owner="me",
        filters=dict.fromkeys(queues, mode),
        names={queue_id: f"tmp-{session_id}-{queue_id}" for queue_id in queues},
        main_names={queue_id: f"tmp-main-{session_id}-{queue_id}" for queue_id in queues},
        **more,  # type: ignore[arg-type]  # fields of SessionRequested, by name
    )


def after(registry: Registry, *events: Event, at_s: float = 0) -> Registry:
    for event in events:
        registry = apply(registry, event, now_ms=int(at_s * 1_000))
    return registry


def actions(registry: Registry, at_s: float = 0) -> list[Action]:
    return list(find_due_actions(registry))


def ready(split: Split = STATIC, **more: object) -> Registry:
    return used(after(registry_of(split), start(**more), QueueCreated("tmp-s-q")))  # type: ignore[arg-type]  # as above


def used(registry: Registry) -> Registry:
    """As queues that were just made can be used."""
    return after(registry, TimePassed(), at_s=QUEUE_IS_USED_AFTER_MS / 1_000)


# Starting


def test_a_session_is_ready_when_its_queue_is_there_and_every_running_splitter_has_seen_it() -> None:
    registry = after(registry_of(STATIC), SplitterSaw("one", 0), SplitterSaw("two", 0), start())
    assert actions(registry) == [CreateQueue("tmp-s-q", "q")]
    assert registry.sessions["s"].status is Status.STARTING
    assert registry.list_shares("q") == []
    registry = after(registry, QueueCreated("tmp-s-q"))
    assert registry.sessions["s"].status is Status.RESOURCES_READY
    assert [share.session_id for share in registry.list_shares("q")] == ["s"]
    registry = after(registry, SplitterSaw("one", registry.version))
    assert registry.sessions["s"].status is Status.RESOURCES_READY
    seen = after(registry, SplitterSaw("two", registry.version))
    assert seen.sessions["s"].status is Status.RESOURCES_READY
    assert used(seen).sessions["s"].status is Status.READY
    assert used(after(registry, SplitterGone("two"))).sessions["s"].status is Status.READY


def test_a_splitter_that_has_been_silent_for_its_lease_is_not_waited_for() -> None:
    registry = after(registry_of(STATIC), SplitterSaw("one", 0), start(), QueueCreated("tmp-s-q"))
    assert registry.sessions["s"].status is Status.RESOURCES_READY
    registry = after(registry, TimePassed(), at_s=SPLITTER_LEASE_S)
    assert registry.sessions["s"].status is Status.READY
    assert registry.splitters == {}


def test_without_a_running_splitter_a_session_is_ready_as_soon_as_its_queue_can_be_used() -> None:
    created = after(registry_of(STATIC), start(), QueueCreated("tmp-s-q"))
    assert created.sessions["s"].status is Status.RESOURCES_READY
    assert ready().sessions["s"].status is Status.READY


def test_the_first_session_moves_the_consumer_to_a_main_queue_and_waits_for_it() -> None:
    registry = after(registry_of(MOVING), start())
    assert actions(registry) == [CreateQueue("tmp-main-s-q", "q"), CreateQueue("tmp-s-q", "q")]
    registry = after(registry, QueueCreated("tmp-s-q"))
    assert registry.sessions["s"].status is Status.STARTING
    registry = after(registry, QueueCreated("tmp-main-s-q"))
    assert actions(registry) == [PointConsumer("q", "tmp-main-s-q")]
    assert not registry.splits["q"].may_forward
    version = registry.version
    registry = used(after(registry, ConsumerPointed("q", "tmp-main-s-q")))
    assert registry.splits["q"].may_forward
    assert registry.version > version
    assert registry.sessions["s"].status is Status.STARTING
    assert actions(registry) == [SwitchSplitter("q", on=True)]
    registry = used(after(registry, SplitterSwitched("q", on=True)))
    assert registry.sessions["s"].status is Status.READY
    second = after(registry, start("t"))
    assert actions(second) == [SwitchSplitter("q", on=True), CreateQueue("tmp-t-q", "q")]


def test_a_consumer_that_cant_be_re_pointed_fails_the_sessions_that_wait_for_it() -> None:
    registry = after(
        registry_of(MOVING), start(), QueueCreated("tmp-main-s-q"), ConsumerRefused("q", "no such service")
    )
    assert (registry.sessions["s"].status, registry.sessions["s"].reason) == (Status.START_ERROR, "no such service")
    assert settle(registry).splits["q"].is_at_rest


def test_a_re_pointed_consumer_has_more_time_to_be_set_up() -> None:
    registry = after(registry_of(MOVING), start())
    assert after(registry, TimePassed(), at_s=MOVING_SETUP_LIMIT_S - 1).sessions["s"].status is Status.STARTING
    late = after(registry, TimePassed(), at_s=MOVING_SETUP_LIMIT_S)
    assert late.sessions["s"].reason == Reason.SETUP_DEADLINE_EXCEEDED


def test_two_queues_and_two_sessions_make_six_temporary_queues() -> None:
    other = replace(MOVING, queue_id="r", source="r-source", consumer_at="r-source")
    registry = after(registry_of(MOVING, other), start("s", queues=("q", "r")), start("t", queues=("q", "r")))
    assert len(registry.queues) == 6


def test_an_event_that_comes_twice_changes_nothing() -> None:
    registry = ready()
    assert after(registry, start(), QueueCreated("tmp-s-q")) == registry
    unknown: list[Any] = [
        QueueCreated("x"),
        QueueNotCreated("x", ""),
        QueueDeleted("x"),
        SessionStopped("x"),
        Heartbeat("x"),
        MainCounted("x", 1),
    ]
    assert after(registry, *unknown, LeftoversReturned("x", 1, empty=True), CleanupFailed("x", "")) == registry
    assert after(registry, QueueDeleted("tmp-s-q")) == registry


@pytest.mark.parametrize(
    "event",
    [
        start("t", queues=("nowhere",)),
        msgspec.structs.replace(start("t"), names={"q": "tmp-s-q"}),
        msgspec.structs.replace(start("t"), names={}),
    ],
)
def test_a_session_that_cannot_be_taken_on_is_refused(event: SessionRequested) -> None:
    with pytest.raises(SessionRefused):
        after(ready(), event)


# Failing


def test_a_queue_that_cannot_be_made_fails_its_session_which_cleans_up_all_it_may_have_made() -> None:
    registry = after(
        registry_of(MOVING), start(), QueueCreated("tmp-main-s-q"), QueueNotCreated("tmp-s-q", "AccessDenied")
    )
    assert (registry.sessions["s"].status, registry.sessions["s"].reason) == (Status.START_ERROR, "AccessDenied")
    registry = settle(registry)
    assert registry.queues == {}
    assert registry.splits["q"].phase is Phase.IDLE
    assert registry.sessions["s"].status is Status.START_ERROR
    assert after(registry, TimePassed(), at_s=KEEP_FAILED_S + 300).sessions == {}


def test_a_main_queue_that_cannot_be_made_fails_the_sessions_that_wait_for_it() -> None:
    registry = after(registry_of(MOVING), start(), QueueNotCreated("tmp-main-s-q", "no"))
    assert registry.sessions["s"].status is Status.START_ERROR
    assert settle(registry).queues == {}


def test_setup_has_a_deadline() -> None:
    registry = after(registry_of(STATIC), start())
    assert after(registry, TimePassed(), at_s=SETUP_LIMIT_S - 1).sessions["s"].status is Status.STARTING
    session = after(registry, TimePassed(), at_s=SETUP_LIMIT_S).sessions["s"]
    assert (session.status, session.reason) == (Status.START_ERROR, Reason.SETUP_DEADLINE_EXCEEDED)


def test_a_session_without_a_heartbeat_ends() -> None:
    registry = after(ready(), Heartbeat("s"), at_s=20)
    assert after(registry, TimePassed(), at_s=20 + HEARTBEAT_LIMIT_S - 1).sessions["s"].status is Status.READY
    session = after(registry, TimePassed(), at_s=20 + HEARTBEAT_LIMIT_S).sessions["s"]
    assert (session.status, session.reason) == (Status.CLOSING, Reason.UNUSED)


def test_a_session_may_have_a_time_limit() -> None:
    registry = after(ready(time_limit_s=25), TimePassed(), at_s=25)
    assert registry.sessions["s"].reason == Reason.TIME_LIMIT_EXCEEDED


def test_cleaning_up_is_tried_again_and_its_failure_shown() -> None:
    registry = after(ready(), SessionStopped("s"), CleanupFailed("tmp-s-q", "AccessDenied"))
    session = registry.sessions["s"]
    assert (session.status, session.reason) == (
        Status.CLEANUP_ERROR,
        "Stopped; its queue isn't cleaned up yet: AccessDenied",
    )
    assert after(registry, CleanupFailed("tmp-s-q", "Throttled")) == registry
    registry = after(registry, TimePassed())
    assert actions(registry) == [ReturnLeftovers("tmp-s-q", "q-main")]
    assert settle(registry).sessions == {}


# Ending


def test_leftovers_go_back_at_once_and_the_queue_goes_when_it_is_empty_after_every_splitter_saw_the_end() -> None:
    registry = after(ready(), SplitterSaw("one", 99))
    registry = after(registry, SessionStopped("s"))
    assert registry.list_shares("q") == []
    assert registry.find_session_queue("s", "q") == registry.queues["tmp-s-q"]
    assert actions(registry) == [ReturnLeftovers("tmp-s-q", "q-main", final=False)]
    registry = after(registry, SplitterSaw("one", registry.version))
    assert actions(registry) == [ReturnLeftovers("tmp-s-q", "q-main", final=False)]
    registry = after(registry, TimePassed(), at_s=5)
    assert registry.queues["tmp-s-q"].quiet_since_ms == 5_000
    assert actions(registry) == [ReturnLeftovers("tmp-s-q", "q-main")]
    registry = after(registry, LeftoversReturned("tmp-s-q", 3, empty=False))
    assert actions(registry) == [ReturnLeftovers("tmp-s-q", "q-main")]
    registry = after(registry, LeftoversReturned("tmp-s-q", 2, empty=True))
    assert registry.queues["tmp-s-q"].returned == 5
    assert actions(registry) == [DeleteQueue("tmp-s-q")]
    assert registry.splits["q"].phase is Phase.ACTIVE
    registry = after(registry, QueueDeleted("tmp-s-q"))
    assert (registry.queues, registry.sessions) == ({}, {})
    assert registry.splits["q"].phase is Phase.IDLE


def test_a_mirroring_sessions_copies_are_not_returned() -> None:
    assert actions(after(ready(mode=MIRROR), SessionStopped("s"), TimePassed())) == [DeleteQueue("tmp-s-q")]


def test_a_condemned_queue_whose_session_is_gone_goes_too() -> None:
    """Nobody routes to a session that isn't there; a queue that waited for word of it would stay for ever."""
    alone = replace(after(ready(), SessionStopped("s")), sessions={})
    assert actions(after(alone, TimePassed())) == [ReturnLeftovers("tmp-s-q", "q-main")]


def test_a_queue_is_quiet_only_by_what_splitters_said_of_a_version_that_was_written() -> None:
    """As the change that ends the session is made, one that nobody knows of may announce the version before."""
    ended = after(ready(), SessionStopped("s"))
    assert ended.queues["tmp-s-q"].quiet_since_ms is None
    assert after(ended, SplitterSaw("one", ended.version - 1), TimePassed()).queues["tmp-s-q"].quiet_since_ms is None
    assert (
        after(ended, SplitterSaw("one", ended.version), TimePassed(), at_s=3).queues["tmp-s-q"].quiet_since_ms == 3000
    )


def test_the_others_are_untouched() -> None:
    registry = after(ready(), start("t"), QueueCreated("tmp-t-q"))
    ended = after(registry, SessionStopped("s"))
    assert ended.sessions["t"] == registry.sessions["t"]
    assert ended.queues["tmp-t-q"] == registry.queues["tmp-t-q"]


# Main


def releasing(split: Split = MOVING, *, drain_timeout_s: int | None = None) -> Registry:
    registry = after(registry_of(replace(split, drain_timeout_s=drain_timeout_s)), start())
    registry = after(
        registry,
        QueueCreated("tmp-s-q"),
        QueueCreated("tmp-main-s-q"),
        ConsumerPointed("q", "tmp-main-s-q"),
        SplitterSwitched("q", on=True),
    )
    return after(registry, SessionStopped("s"), LeftoversReturned("tmp-s-q", 0, empty=True), QueueDeleted("tmp-s-q"))


def draining(split: Split = MOVING, *, drain_timeout_s: int | None = None) -> Registry:
    return after(releasing(split, drain_timeout_s=drain_timeout_s), SplitterSwitched("q", on=False))


def test_messages_wait_at_the_source_before_main_is_drained() -> None:
    """What the splitter has read by then still goes to main."""
    registry = releasing()
    assert registry.splits["q"].phase is Phase.RELEASING
    assert registry.splits["q"].may_forward
    assert actions(registry) == [SwitchSplitter("q", on=False)]
    off = draining(MOVING_FIFO)
    assert off.splits["q"].phase is Phase.DRAINING
    assert not off.splits["q"].may_forward
    assert off.version > registry.version


def test_a_standard_queues_consumer_goes_back_at_once_and_what_is_left_in_main_follows() -> None:
    """A message that the consumer fails at, or a splitter that is silent for its lease, holds nothing back."""
    registry = releasing()
    registry = after(registry, SplitterSaw("one", registry.version), SplitterSwitched("q", on=False))
    assert actions(registry) == [PointConsumer("q", "q-source")]
    registry = after(registry, ConsumerPointed("q", "q-source"))
    assert registry.splits["q"].phase is Phase.DRAINING
    assert actions(registry) == []  # a splitter may still send to main
    registry = after(registry, SplitterSaw("one", registry.version))
    assert actions(registry) == [ReturnLeftovers("tmp-main-s-q", "q-source")]
    registry = after(registry, LeftoversReturned("tmp-main-s-q", 1, empty=True), QueueDeleted("tmp-main-s-q"))
    assert registry.splits["q"].is_at_rest


def test_a_session_that_starts_as_the_consumer_goes_back_has_it_read_the_same_main_queue() -> None:
    registry = releasing()
    registry = after(registry, SplitterSaw("one", registry.version), SplitterSwitched("q", on=False))
    registry = after(registry, ConsumerPointed("q", "q-source"), start("t"))
    assert actions(registry)[0] == PointConsumer("q", "tmp-main-s-q")


def test_a_drain_that_is_ended_by_hand_returns_what_is_left() -> None:
    registry = draining(MOVING_FIFO)
    registry = after(registry, SplitterSaw("one", registry.version - 1), MainCounted("q", 7), DrainEnded("q"))
    assert registry.splits["q"].phase is Phase.DRAINING
    registry = after(registry, MainCounted("q", 7), SplitterSaw("one", registry.version))
    assert actions(registry) == [PointConsumer("q", "q.fifo")]


def test_a_drain_that_is_ended_before_it_begins_ends_at_once_and_that_of_the_next_session_does_not() -> None:
    early = after(releasing(MOVING_FIFO), DrainEnded("q"))
    assert after(early, SplitterSwitched("q", on=False)).splits["q"].phase is Phase.RESTORING
    again = after(early, start("t"), QueueCreated("tmp-t-q"), SplitterSwitched("q", on=True), SessionStopped("t"))
    again = after(again, LeftoversReturned("tmp-t-q", 0, empty=True), QueueDeleted("tmp-t-q"))
    assert after(again, SplitterSwitched("q", on=False)).splits["q"].phase is Phase.DRAINING
    active = ready()
    assert after(active, DrainEnded("q"), DrainEnded("unknown")) == active


def test_a_fifo_main_is_kept_until_it_has_been_empty_for_some_time() -> None:
    registry = draining(MOVING_FIFO)
    assert actions(registry) == [CountMain("q", "tmp-main-s-q")]
    registry = after(registry, MainCounted("q", 0), at_s=5)
    registry = after(registry, MainCounted("q", 1), at_s=20)
    registry = after(registry, MainCounted("q", 0), at_s=30)
    registry = after(registry, MainCounted("q", 0), at_s=30 + DRAIN_QUIET_S - 1)
    assert registry.splits["q"].phase is Phase.DRAINING
    registry = after(registry, MainCounted("q", 0), at_s=30 + DRAIN_QUIET_S)
    assert registry.splits["q"].phase is Phase.RESTORING
    assert actions(registry) == [PointConsumer("q", "q.fifo")]
    registry = after(registry, ConsumerPointed("q", "q.fifo"))
    assert actions(registry) == [ReturnLeftovers("tmp-main-s-q", "q.fifo")]
    registry = after(registry, LeftoversReturned("tmp-main-s-q", 0, empty=True), QueueDeleted("tmp-main-s-q"))
    assert (registry.splits["q"].phase, registry.splits["q"].main) == (Phase.IDLE, None)
    assert actions(registry) == []


def test_main_is_not_waited_for_beyond_the_drain_timeout_nor_without_one_given_up() -> None:
    limited = draining(MOVING_FIFO, drain_timeout_s=100)
    assert draining(MOVING_FIFO, drain_timeout_s=0).splits["q"].phase is Phase.RESTORING
    assert after(limited, TimePassed(), at_s=99).splits["q"].phase is Phase.DRAINING
    assert after(limited, TimePassed(), at_s=100).splits["q"].phase is Phase.RESTORING
    assert after(draining(MOVING_FIFO), TimePassed(), at_s=10**6).splits["q"].phase is Phase.DRAINING


def test_main_stays_until_every_splitter_has_let_go_of_it() -> None:
    registry = releasing()
    registry = after(registry, SplitterSaw("one", registry.version), SplitterSwitched("q", on=False))
    registry = after(registry, MainCounted("q", 0))
    assert registry.splits["q"].phase is Phase.DRAINING
    assert after(registry, SplitterSaw("one", registry.version)).splits["q"].phase is Phase.RESTORING


def test_a_session_that_starts_meanwhile_takes_the_split_over_as_it_is() -> None:
    registry = after(draining(MOVING_FIFO), start("t"), QueueCreated("tmp-t-q"))
    assert actions(registry) == [SwitchSplitter("q", on=True)]
    registry = used(after(registry, SplitterSwitched("q", on=True)))
    assert registry.sessions["t"].status is Status.READY
    assert registry.splits["q"].main == "tmp-main-s-q"


def test_a_session_that_starts_while_main_goes_gets_a_new_one() -> None:
    registry = after(draining(drain_timeout_s=0), start("t"), QueueCreated("tmp-t-q"), QueueCreated("tmp-main-t-q"))
    assert registry.sessions["t"].status is Status.STARTING
    assert actions(registry) == [PointConsumer("q", "tmp-main-t-q")]
    registry = used(after(registry, ConsumerPointed("q", "tmp-main-t-q"), SplitterSwitched("q", on=True)))
    assert registry.sessions["t"].status is Status.READY
    assert actions(registry) == [SwitchSplitter("q", on=True), ReturnLeftovers("tmp-main-s-q", "q-source")]


# A simulated world


def settle(registry: Registry) -> Registry:
    """Does what is due, successfully, until nothing is, in a world without messages; time passes."""
    for now_s in range(300):
        for action in actions(registry, now_s):
            registry = after(registry, answer(action), at_s=now_s)
        registry = after(registry, TimePassed(), at_s=now_s)
    return registry


def answer(action: Action) -> Event:
    match action:
        case CreateQueue(name=name):
            return QueueCreated(name)
        case PointConsumer(queue_id=queue_id, at=at):
            return ConsumerPointed(queue_id, at)
        case SwitchSplitter(queue_id=queue_id, on=on):
            return SplitterSwitched(queue_id, on)
        case ReturnLeftovers(name=name):
            return LeftoversReturned(name, 0, empty=True)
        case DeleteQueue(name=name):
            return QueueDeleted(name)
        case CountMain(queue_id=queue_id):
            return MainCounted(queue_id, 0)


@dataclass
class Splitter:
    """An execution environment: it reads, announces, reads again, and routes by what it read, for as long as it may."""

    name: str
    registry: Registry | None = None
    announced_ms: int | None = None
    checked: bool = False


@dataclass
class World:
    """Queues with numbered messages, one split queue, some splitters, and a shell that forgets half of what it did."""

    random: Random
    registry: Registry
    now_ms: int = 0
    queues: dict[str, list[int]] = field(default_factory=dict)
    received: list[int] = field(default_factory=list)
    splitters: list[Splitter] = field(default_factory=list)
    consumer_at: str = ""  # where it is in truth
    sent: int = 0
    ids: Iterator[int] = field(default_factory=count)

    def event(self, event: Event) -> None:
        self.registry = apply(self.registry, event, now_ms=self.now_ms)

    # What people do

    def send(self) -> None:
        self.queues["q-source"].append(self.sent)
        self.sent += 1

    def start(self) -> None:
        if len(self.registry.sessions) < 5:
            self.event(start(f"s{next(self.ids)}"))

    def stop(self) -> None:
        if self.registry.sessions:
            self.event(SessionStopped(self.random.choice(sorted(self.registry.sessions))))

    def beat(self) -> None:
        for session_id in self.registry.sessions:
            self.event(Heartbeat(session_id))

    def read_as_a_session(self) -> None:
        names = [queue.name for queue in self.registry.queues.values() if queue.session_id]
        if names:
            self.receive(self.random.choice(names))

    def consume(self) -> None:
        self.receive(self.consumer_at)

    def receive(self, name: str) -> None:
        if self.queues.get(name):
            self.received.append(self.queues[name].pop(0))

    # What the shell does

    def tick(self) -> None:
        self.now_ms += self.random.choice([100, 1_000, 10_000])
        self.event(TimePassed())

    def act(self) -> None:
        todo = list(find_due_actions(self.registry))
        self.random.shuffle(todo)
        for action in todo[: self.random.randint(1, 3)]:
            event = self.done(action)
            if event is not None and self.random.random() < 0.7:
                self.event(event)

    def done(self, action: Action) -> Event | None:
        match action:
            case CreateQueue(name=name):
                if self.random.random() < 0.05:
                    return QueueNotCreated(name, "no")
                self.queues.setdefault(name, [])
            case ReturnLeftovers(name=name, to=to, final=final):
                return self.returned(name, to, final=final)
            case DeleteQueue(name=name):
                if self.random.random() < 0.1:
                    return CleanupFailed(name, "not now")
                self.lose(name)
            case CountMain(queue_id=queue_id, name=name):
                return MainCounted(queue_id, len(self.queues[name]))
            case PointConsumer(at=at):
                return self.pointed(at)
        return answer(action)

    def pointed(self, at: str) -> Event:
        [consumer] = self.registry.consumers["q"].consumers
        leg = consumer.next_move(at, source="q-source")
        if leg is None:
            return ConsumerPointed("q", at)
        if consumer.to is None:
            return ConsumersSent("q", at)
        queue, others = leg
        assert self.consumer_at in {queue, *others}
        self.consumer_at = queue
        return ConsumerMoved("q", 0, self.consumer_at)

    def returned(self, name: str, to: str, *, final: bool) -> Event:
        messages = self.queues.get(name, [])
        moved = messages[: self.random.randint(0, 3)]
        self.queues[to].extend(moved)
        del messages[: len(moved)]
        return LeftoversReturned(name, len(moved), empty=final and not messages)

    def lose(self, name: str) -> None:
        assert not self.queues.pop(name, []), f"{name} had messages"

    # What splitters do

    def split(self) -> None:
        splitter = self.random.choice(self.splitters)
        self.random.choice([self.look, self.announce, self.check, self.route, self.route])(splitter)

    def look(self, splitter: Splitter) -> None:
        splitter.registry, splitter.announced_ms, splitter.checked = self.registry, None, False

    def announce(self, splitter: Splitter) -> None:
        if splitter.registry is not None:
            self.event(SplitterSaw(splitter.name, splitter.registry.version))
            # An announcement that is repeated is no more than the first one: the version is read again after it.
            splitter.announced_ms, splitter.checked = self.now_ms, False

    def check(self, splitter: Splitter) -> None:
        splitter.checked = (
            splitter.registry is not None
            and splitter.announced_ms is not None
            and splitter.registry.version == self.registry.version
        )

    def route(self, splitter: Splitter) -> None:
        registry = splitter.registry
        if registry is None or splitter.announced_ms is None or not splitter.checked or not self.queues["q-source"]:
            return
        if self.now_ms - splitter.announced_ms >= SPLITTER_LEASE_S * 1_000 or not registry.splits["q"].may_forward:
            return
        queues = [registry.find_session_queue(share.session_id, "q") for share in registry.list_shares("q")]
        targets = [queue.name for queue in queues if queue is not None]
        target = next((name for name in targets if name in self.queues), registry.splits["q"].main)
        if target in self.queues:  # else the message stays: sending failed
            self.queues[target].append(self.queues["q-source"].pop(0))

    def everything(self) -> list[int]:
        return sorted([*self.received, *(message for messages in self.queues.values() for message in messages)])

    def run(self, steps: int) -> None:
        likely = [self.send, self.split, self.split, self.act, self.consume, self.read_as_a_session, self.beat]
        for _ in range(steps):
            self.random.choice([*likely, self.tick, self.start, self.stop])()
            assert self.everything() == list(range(self.sent))
            temporary = {name for name in self.queues if name.startswith("tmp-")}
            assert temporary <= self.registry.queues.keys(), "every temporary queue is on record"

    def is_over(self) -> bool:
        started = any(session.status is not Status.START_ERROR for session in self.registry.sessions.values())
        return not (started or self.registry.queues) and self.registry.splits["q"].phase is Phase.IDLE

    def wind_down(self) -> None:
        """Until all is over, and a hundred rounds beyond: nothing may come of what was cut off."""
        rounds_after = 0
        for _ in range(2_000):
            rounds_after = rounds_after + 1 if self.is_over() else 0
            if rounds_after > 100:
                return
            for session_id in self.registry.sessions:
                self.event(SessionStopped(session_id))
            for splitter in self.splitters:
                self.look(splitter)
                self.announce(splitter)
            self.tick()
            self.act()
            self.consume()


@settings(max_examples=60)
@example(60172, STATIC)  # a splitter announced the version that it had, and routed by it after others had gone on
@given(
    st.integers(0, 2**32),
    st.sampled_from([STATIC, MOVING, replace(MOVING, drain_timeout_s=0), replace(MOVING, drain_timeout_s=60)]),
)
def test_nothing_is_lost_and_nothing_left_over_whatever_is_cut_off(seed: int, split: Split) -> None:
    at = split.main or split.source
    consumers = Consumers(queue_id="q", consumers=(Consumer(target=TRIGGER, original="as it was", at=at),))
    registry = registry_of(replace(split, consumer_at=at)).with_consumers(consumers)
    world = World(random=Random(seed), registry=registry, consumer_at=at)
    world.queues = {"q-source": [], "q-main": []}
    world.splitters = [Splitter(name) for name in ("one", "two", "three")]
    world.run(300)
    world.wind_down()
    assert set(world.queues) == {"q-source", "q-main"}
    assert world.registry.queues == {}
    assert all(session.status is Status.START_ERROR for session in world.registry.sessions.values())
    assert world.registry.splits["q"].phase is Phase.IDLE
    assert world.registry.splits["q"].consumer_at == world.consumer_at == at
    assert world.registry.splits["q"].is_at_rest
    assert world.everything() == list(range(world.sent))
