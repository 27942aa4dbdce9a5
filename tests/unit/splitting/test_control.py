"""Sessions from start to end as the control function takes them, with a registry and queues in memory."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from sluice.errors import CallFailed, TooBusy
from sluice.message import Message, Value
from sluice.splitting.control import (
    LATER_S,
    MAX_RACES,
    MAX_ROUNDS,
    SOON_S,
    WRITTEN_EVERY_MS,
    Control,
    NoSuchSession,
    RegistryCache,
    compute_next_tick_s,
)
from sluice.splitting.filters.values import Filter, Mode, QueueFilter
from sluice.splitting.policies import Policy
from sluice.splitting.sessions.events import SETUP_LIMIT_S, SessionRefused, SessionStopped, TimePassed
from sluice.splitting.sessions.rules import CHANGES_AT_ONCE, QUEUE_IS_USED_AFTER_MS
from sluice.splitting.sessions.state import ALIVE, SPLITTER_LEASE_S, QueueState, Reason, Registry, Status
from sluice.splitting.settings import SplitConfig
from tests.fakes import Clock
from tests.splitting_fakes import SETTINGS, FakeRegistryStore, FakeSplitQueues, pointing

FILTERS = {"q": QueueFilter(filter=Filter(attributes=(("client", "a"),)))}
SESSION_QUEUE = f"sluice-tmp-{SETTINGS.deployment}000000000000-source"  # the first token is the session's id


@dataclass
class World:
    """A control function and all it talks to."""

    clock: Clock = field(default_factory=Clock)
    store: FakeRegistryStore = field(default_factory=FakeRegistryStore)
    queues: FakeSplitQueues = field(default_factory=FakeSplitQueues)
    registry_cache: RegistryCache = field(init=False)

    def __post_init__(self) -> None:
        numbers = itertools.count()
        self.queues.attributes["source"] = {"VisibilityTimeout": "77", "DelaySeconds": "5"}
        self.queues.tags["source"] = {"team": "theirs", "kept": "yes"}
        self.registry_cache = RegistryCache(self.store)
        self._control = Control(
            registry_cache=self.registry_cache,
            queues=self.queues,
            pointing=pointing(),
            settings=SETTINGS,
            now_ms=self.clock,
            new_token=lambda: f"{next(numbers):012d}",
            may_go_on=lambda: True,
        )

    @property
    def control(self) -> Control:
        """A new invocation's, in the same environment."""
        return replace(self._control, registry_cache=self.registry_cache)

    def start(self, filters=FILTERS) -> str:
        return self.control.start(filters, owner="me")

    def status(self, session_id: str) -> Status:
        return self.control.view().sessions[session_id].status

    def pass_s(self, seconds: float) -> None:
        self.clock.ms += int(seconds * 1000)
        self.control.advance()


@pytest.fixture
def world() -> World:
    return World()


def test_a_sessions_queue_is_tagged_with_who_may_read_it(world: World) -> None:
    """By the tag, developers' permissions can be limited to their own sessions' queues."""
    session_id = world.control.start(FILTERS, owner="me", user_id="AROAEXAMPLE:me@example.com")
    assert world.queues.tags[SESSION_QUEUE]["sluice-user"] == "AROAEXAMPLE:me@example.com"
    assert world.control.view().sessions[session_id].user_id == "AROAEXAMPLE:me@example.com"


def test_a_sessions_name_is_shown_and_its_queue_says_whose_it_is(world: World) -> None:
    session_id = world.control.start(FILTERS, owner="me", name="my branch")
    assert world.control.view().sessions[session_id].name == "my branch"
    assert world.queues.tags[SESSION_QUEUE]["sluice-name"] == "my branch"
    assert session_id in SESSION_QUEUE


def test_queues_whose_shortened_names_are_equal_get_their_own(world: World) -> None:
    sources = {"p": "s" * 70 + "p", "q": "s" * 70 + "q"}
    configured = tuple(SplitConfig(queue_id=id_, source=source, main=id_) for id_, source in sources.items())
    control = replace(world.control, settings=replace(SETTINGS, split_queues=configured))
    session_id = control.start(dict.fromkeys(sources, FILTERS["q"]), owner="me")
    assert len({queue.name for queue in control.view().list_session_queues(session_id)}) == len(sources)


def test_a_session_gets_a_queue_like_the_source_with_its_tags_and_the_configured_ones(world: World) -> None:
    session_id = world.start()
    assert world.queues.attributes[SESSION_QUEUE] == {"VisibilityTimeout": "77", "MaximumMessageSize": "1048576"}
    assert world.queues.tags[SESSION_QUEUE] == {"team": "ours", "kept": "yes", "sluice-session": session_id}
    world.pass_s(2)
    assert world.status(session_id) is Status.READY


def test_a_session_whose_messages_all_go_to_an_earlier_one_is_shadowed_by_it(world: World) -> None:
    other = {"q": QueueFilter(filter=Filter(attributes=(("client", "b"),)))}
    mirroring = {"q": replace(FILTERS["q"], mode=Mode.MIRROR)}
    nothing = {"q": QueueFilter(filter=Filter())}
    ids = [world.start(filters) for filters in (mirroring, FILTERS, other, nothing, nothing, FILTERS, mirroring)]
    registry = world.control.view()
    shadows = [registry.find_shadow(registry.sessions[session_id], "q") for session_id in ids]
    assert shadows == ["", "", "", "", "", ids[1], ids[1]]
    world.control.stop(ids[1], Reason.STOPPED)
    registry = world.control.view()
    assert registry.find_shadow(registry.sessions[ids[5]], "q") == ""
    assert registry.find_shadow(registry.sessions[ids[6]], "q") == ids[5]


def test_a_queue_is_on_record_before_it_is_made(world: World) -> None:
    create: Callable[..., None] = world.queues.create

    def checked(name: str, *arguments: object) -> None:
        assert name in world.store.registry.queues
        create(name, *arguments)

    world.queues.create = checked  # type: ignore[assignment, method-assign]
    world.start()


def test_a_queue_that_cant_be_made_fails_the_session_and_leaves_nothing(world: World) -> None:
    world.queues.gone.add("source")
    session_id = world.start()
    session = world.control.view().sessions[session_id]
    assert session.status is Status.START_ERROR
    assert "source" in session.reason
    world.pass_s(SPLITTER_LEASE_S)
    assert world.store.registry.queues == {}


def test_unknown_queues_and_keys_are_refused_and_change_nothing(world: World) -> None:
    with pytest.raises(SessionRefused, match="other; there are q"):
        world.start({"other": FILTERS["q"]})
    with pytest.raises(SessionRefused, match="key"):
        world.control.start(FILTERS, owner="me", key="no good")
    assert world.store.registry.sessions == {}
    assert world.queues.calls == []


def test_what_policies_forbid_is_refused_by_each_queue_of_a_star_and_changes_nothing(world: World) -> None:
    other = SplitConfig(queue_id="other", source="other", main="main")
    policies = [Policy(queues=("q",), required_attributes=("tenant",)), Policy(queues=("o*",), max_time_limit_s=60)]
    settings = replace(SETTINGS, split_queues=(*SETTINGS.split_queues, other), policies=policies)
    control = replace(world.control, settings=settings)
    with pytest.raises(SessionRefused) as caught:
        control.start({"*": FILTERS["q"]}, owner="me")
    assert str(caught.value) == (
        "queue q: splitting.policies[0].required_attributes: its filter must name tenant; "
        "queue other: splitting.policies[1].max_time_limit_s: it must have a time limit, of at most 60 s"
    )
    assert (world.store.registry.sessions, world.queues.calls) == ({}, [])
    control.start({"other": FILTERS["q"]}, owner="me", time_limit_s=60)


def test_sessions_that_live_on_a_queue_count_for_its_policy(world: World) -> None:
    control = replace(world.control, settings=replace(SETTINGS, policies=(Policy(max_sessions=1),)))
    first = control.start(FILTERS, owner="me")
    with pytest.raises(SessionRefused, match=r"queue q: splitting\.policies\[0\]\.max_sessions: there are 1"):
        control.start(FILTERS, owner="me")
    control.stop(first, Reason.STOPPED)
    control.start(FILTERS, owner="me")


def test_a_star_stands_for_every_queue_that_isnt_named(world: World) -> None:
    session_id = world.start({"*": FILTERS["q"]})
    assert world.control.view().sessions[session_id].filters.keys() == {"q"}


def test_what_is_left_goes_back_without_the_mark_and_is_counted_and_the_queue_goes(world: World) -> None:
    session_id = world.start()
    marked = {"sluice-session": Value("String.sluice", session_id), "n": Value("Number", "1")}
    world.queues.messages[SESSION_QUEUE] = [
        Message(message_id=str(n), body=str(n), attributes=marked) for n in range(25)
    ]
    world.control.stop(session_id, Reason.STOPPED)
    world.control.advance()
    assert sorted(map(int, world.queues.bodies("main"))) == list(range(25))
    assert all(message.attributes.keys() == {"n"} for message in world.queues.messages["main"])
    assert ("delete", SESSION_QUEUE) in world.queues.calls
    assert world.control.returned == {"q": 25}
    assert world.store.registry.sessions == {}


def test_a_splitter_that_has_not_seen_the_end_keeps_the_queue_but_not_its_messages(world: World) -> None:
    session_id = world.start()
    world.store.announce_version("splitter", version=world.store.read_version(), at_ms=world.clock())
    world.queues.messages[SESSION_QUEUE] = [Message(message_id="1", body="1")]
    world.control.stop(session_id, Reason.STOPPED)
    world.control.advance()
    assert world.queues.bodies("main") == ["1"]
    assert ("delete", SESSION_QUEUE) not in world.queues.calls
    world.store.announce_version("splitter", version=world.store.read_version(), at_ms=world.clock())
    world.control.advance()
    assert ("delete", SESSION_QUEUE) in world.queues.calls


def test_what_main_refuses_stays_in_the_sessions_queue(world: World) -> None:
    session_id = world.start()
    world.queues.messages[SESSION_QUEUE] = [Message(message_id="1", body="1"), Message(message_id="2", body="2")]
    world.queues.failing.add("main")
    world.control.stop(session_id, Reason.STOPPED)
    world.control.advance()
    assert world.queues.bodies(SESSION_QUEUE) == ["1", "2"]
    assert world.store.registry.sessions[session_id].status is Status.CLEANUP_ERROR
    world.queues.failing.clear()
    world.control.advance()
    assert sorted(world.queues.bodies("main")) == ["1", "2"]


def test_mirrored_copies_are_not_returned(world: World) -> None:
    session_id = world.start({"q": structs.replace(FILTERS["q"], mode=Mode.MIRROR)})
    world.queues.messages[SESSION_QUEUE] = [Message(message_id="1", body="1")]
    world.control.stop(session_id, Reason.STOPPED)
    world.control.advance()
    assert world.queues.bodies("main") == []
    assert world.store.registry.queues == {}


def test_why_a_session_ended_is_remembered_when_it_is_gone(world: World) -> None:
    session_id = world.start()
    world.pass_s(2)
    world.control.stop(session_id, Reason.FILTER_TIMED_OUT)
    world.control.advance()
    with pytest.raises(NoSuchSession, match="FilterTimedOut"):
        world.control.heartbeat(session_id)
    with pytest.raises(NoSuchSession, match="never started"):
        world.control.stop("unheard-of", Reason.STOPPED)


def test_heartbeats_keep_a_session_and_their_absence_ends_it(world: World) -> None:
    session_id = world.start()
    for _ in range(5):
        world.pass_s(20)
        world.control.heartbeat(session_id)
    assert world.status(session_id) is Status.READY
    world.pass_s(31)
    world.pass_s(1)
    assert world.store.reasons[session_id] == Reason.UNUSED


def test_a_lost_race_is_run_again_and_too_many_are_an_error(world: World) -> None:
    world.store.rivals = 3
    world.start()
    world.store.rivals = MAX_RACES
    with pytest.raises(TooBusy):
        world.start()


def test_looking_changes_nothing(world: World) -> None:
    world.start()
    before, calls = world.store.read_revision(), list(world.queues.calls)
    world.control.view()
    assert (world.store.read_revision(), world.queues.calls) == (before, calls)


def test_one_session_in_a_hurry_does_not_do_the_work_of_others(world: World) -> None:
    world.queues.failing.add("source")  # the first one's queue can't be described
    world.start()
    world.queues.failing.clear()
    calls = len(world.queues.calls)
    world.start()
    assert [what for what, _ in world.queues.calls[calls:]] == ["describe", "create"]


def test_the_sweep_deletes_this_deployments_unknown_queues_and_no_others(world: World) -> None:
    world.start()
    for name in (
        f"sluice-tmp-{SETTINGS.deployment}999999999999-x",
        "sluice-tmp-others999999999999-x",
        "snowflake-client-x",
    ):
        world.queues.messages[name] = []
    assert world.control.sweep() == [f"sluice-tmp-{SETTINGS.deployment}999999999999-x"]
    assert SESSION_QUEUE in world.queues.messages


def test_ticks_come_soon_while_something_moves_later_while_sessions_live_and_not_at_all_without(world: World) -> None:
    assert compute_next_tick_s(world.store.registry) is None
    session_id = world.start()
    world.pass_s(2)
    assert compute_next_tick_s(world.store.registry) == LATER_S
    world.store.announce_version("splitter", version=world.store.read_version(), at_ms=world.clock())
    world.control.stop(session_id, Reason.STOPPED)
    assert compute_next_tick_s(world.store.registry) == SOON_S


def test_a_queue_that_aws_refuses_fails_the_session_with_awss_words(world: World) -> None:
    world.queues.refusing.add(SESSION_QUEUE)
    session_id = world.start()
    session = world.store.registry.sessions[session_id]
    assert session.status is Status.START_ERROR
    assert "AccessDenied" in session.reason


def test_a_queue_that_aws_has_no_time_for_is_made_by_the_next_tick(world: World) -> None:
    world.queues.failing.add(SESSION_QUEUE)
    session_id = world.start()
    assert compute_next_tick_s(world.store.registry) == SOON_S
    world.pass_s(SOON_S)
    assert world.status(session_id) is Status.STARTING
    world.queues.failing.clear()
    world.pass_s(SOON_S)
    world.pass_s(2)
    assert world.status(session_id) is Status.READY


def test_a_queue_that_aws_never_has_time_for_fails_the_session_at_its_deadline(world: World) -> None:
    world.queues.failing.add(SESSION_QUEUE)
    session_id = world.start()
    world.pass_s(SETUP_LIMIT_S)
    session = world.store.registry.sessions[session_id]
    assert session.status is Status.START_ERROR
    assert session.reason == f"{Reason.SETUP_DEADLINE_EXCEEDED}: create: InternalError: by script"


def test_a_deadline_names_no_refusal_that_is_over(world: World) -> None:
    world.queues.failing.add(SESSION_QUEUE)
    session_id = world.start()
    world.queues.failing.clear()
    world.pass_s(SOON_S)
    assert world.store.registry.splits["q"].not_moved == ""
    assert world.store.registry.sessions[session_id].status is not Status.START_ERROR


@pytest.mark.parametrize(
    ("code", "text", "is_final"),
    [
        ("AWS.SimpleQueueService.QueueDeletedRecently", "You must wait 60 seconds after deleting a queue", False),
        ("RequestThrottled", "The request was denied due to request throttling.", False),
        ("QueueAlreadyExists", "A queue already exists with the same name and a different value", True),
        ("InvalidAttributeValue", "Invalid value for the parameter Policy. Reason: Policy length exceeds 8192.", True),
    ],
)
def test_what_sqs_refuses_is_the_reason_in_one_line(world: World, code: str, text: str, is_final: bool) -> None:
    def refuse(*_: Any) -> None:
        raise CallFailed("CreateQueue", code, text)

    world.queues.create = refuse  # type: ignore[assignment, method-assign]
    session_id = world.start()
    if not is_final:
        assert world.status(session_id) is Status.STARTING
        world.pass_s(SETUP_LIMIT_S)
    session = world.store.registry.sessions[session_id]
    because = "" if is_final else f"{Reason.SETUP_DEADLINE_EXCEEDED}: "
    assert (session.status, session.reason) == (Status.START_ERROR, f"{because}CreateQueue: {code}: {text}")


def test_a_start_that_was_cut_off_is_finished_by_the_next_tick(world: World) -> None:
    hurried = replace(world.control, may_go_on=lambda: False)
    session_id = hurried.start(FILTERS, owner="me")
    assert world.queues.calls == []
    assert world.status(session_id) is Status.STARTING
    world.control.advance()
    world.pass_s(2)
    assert world.status(session_id) is Status.READY


def test_a_queue_that_isnt_configured_any_more_fails_its_session_and_no_tick(world: World) -> None:
    session_id = replace(world.control, may_go_on=lambda: False).start(FILTERS, owner="me")
    replace(world.control, settings=replace(SETTINGS, split_queues=())).advance()
    assert world.store.registry.sessions[session_id].status is Status.START_ERROR
    assert world.store.registry.sessions[session_id].reason == Reason.QUEUE_REMOVED


def test_a_session_of_a_queue_that_isnt_configured_any_more_ends_as_any_other(world: World) -> None:
    session_id = world.start()
    world.pass_s(2)
    world.queues.messages[SESSION_QUEUE] = [Message(message_id="1", body="1")]
    without = replace(world.control, settings=replace(SETTINGS, split_queues=()))
    without.stop(session_id, Reason.STOPPED)
    without.advance()
    assert world.queues.bodies("main") == ["1"]
    assert (world.store.registry.sessions, world.store.registry.queues) == ({}, {})


def test_without_main_what_is_left_stays_where_it_is(world: World) -> None:
    session_id = world.start()
    world.queues.messages[SESSION_QUEUE] = [Message(message_id="1", body="1")]
    world.queues.gone.add("main")
    world.control.stop(session_id, Reason.STOPPED)
    world.control.advance()
    assert world.queues.bodies(SESSION_QUEUE) == ["1"]
    session = world.store.registry.sessions[session_id]
    assert (session.status, session.reason) == (
        Status.CLEANUP_ERROR,
        "Stopped; its queue isn't cleaned up yet: no such queue: main",
    )
    world.queues.gone.clear()
    world.control.advance()
    assert world.queues.bodies("main") == ["1"]
    assert world.store.registry.queues == {}


def test_a_sessions_queue_that_somebody_deleted_is_done_with(world: World) -> None:
    session_id = world.start()
    world.queues.delete(SESSION_QUEUE)
    world.control.stop(session_id, Reason.STOPPED)
    world.control.advance()
    assert (world.store.registry.sessions, world.store.registry.queues) == ({}, {})


def test_what_main_refuses_is_not_asked_again_for_ever(world: World) -> None:
    """The fake's messages are visible again at once, as those of a queue without a visibility timeout."""
    session_id = world.start()
    world.queues.messages[SESSION_QUEUE] = [Message(message_id=body, body=body) for body in ("bad", "good")]
    world.queues.refused.add("bad")
    world.control.stop(session_id, Reason.STOPPED)
    world.control.advance()
    assert (world.queues.bodies("main"), world.queues.bodies(SESSION_QUEUE)) == (["good"], ["bad"])
    assert ("delete", SESSION_QUEUE) not in world.queues.calls


def test_what_was_returned_before_a_failure_is_counted(world: World) -> None:
    session_id = world.start()
    world.queues.messages[SESSION_QUEUE] = [Message(message_id=str(n), body=str(n)) for n in range(15)]
    receive = world.queues.receive_batch

    def receive_once(name: str) -> Sequence[Message]:
        if len(world.queues.messages[name]) < 15:
            world.queues.failing.add(name)
        return receive(name)

    world.queues.receive_batch = receive_once  # type: ignore[method-assign]
    world.control.stop(session_id, Reason.STOPPED)
    world.control.advance()
    assert len(world.queues.bodies("main")) == 10
    assert world.store.registry.queues[SESSION_QUEUE].returned == 10
    assert world.store.registry.sessions[session_id].status is Status.CLEANUP_ERROR


def test_what_goes_back_in_order_is_not_overtaken_by_its_group(world: World) -> None:
    """Two messages of more than half a request's bytes go in two requests, of which the first is refused."""
    fifo = SplitConfig(queue_id="q", source="s.fifo", main="main.fifo")
    control = replace(world.control, settings=replace(SETTINGS, split_queues=(fifo,)))
    session_id = control.start(FILTERS, owner="me")
    [name] = world.store.registry.queues
    first, second = "1" * 700_000, "2" * 700_000
    world.queues.messages[name] = [
        Message(message_id=body[0], body=body, system={"MessageGroupId": group})
        for body, group in ((first, "g"), (second, "g"), ("other", "h"))
    ]
    world.queues.refused.add(first)
    control.stop(session_id, Reason.STOPPED)
    control.advance()
    assert world.queues.bodies("main.fifo") == ["other"]
    assert world.queues.bodies(name) == [first, second]
    world.queues.refused.clear()
    control.advance()
    assert world.queues.bodies("main.fifo") == ["other", first, second]


def test_ending_twice_is_ending_once(world: World) -> None:
    session_id = world.start()
    world.store.announce_version("splitter", version=world.store.read_version(), at_ms=world.clock())
    world.control.stop(session_id, Reason.STOPPED)
    ended = world.store.registry.sessions[session_id]
    world.clock.ms += 1_000
    world.control.stop(session_id, Reason.FILTER_TIMED_OUT)
    assert world.store.registry.sessions[session_id] == ended


def test_a_session_is_ready_when_every_splitter_has_seen_it(world: World) -> None:
    world.store.announce_version("splitter", version=0, at_ms=world.clock())
    session_id = world.start()
    world.clock.ms += QUEUE_IS_USED_AFTER_MS
    assert world.status(session_id) is Status.RESOURCES_READY
    world.store.announce_version("splitter", version=world.store.read_version(), at_ms=world.clock())
    assert world.status(session_id) is Status.READY


def test_a_session_has_no_more_time_than_its_limit(world: World) -> None:
    session_id = world.control.start(FILTERS, owner="me", time_limit_s=20)
    world.pass_s(19)
    assert world.status(session_id) is Status.READY
    world.pass_s(1)
    world.pass_s(1)
    assert world.store.reasons[session_id] == Reason.TIME_LIMIT_EXCEEDED


def test_others_are_untouched_when_a_session_ends(world: World) -> None:
    first, second = world.start(), world.start()
    world.pass_s(2)
    [queue] = [queue.name for queue in world.store.registry.queues.values() if queue.session_id == second]
    world.queues.messages[queue] = [Message(message_id="1", body="1")]
    world.control.stop(first, Reason.STOPPED)
    world.control.advance()
    assert world.queues.bodies(queue) == ["1"]
    assert world.status(second) is Status.READY
    assert world.store.registry.sessions.keys() == {second}


def test_what_the_last_round_did_is_on_record(world: World) -> None:
    """Others keep starting sessions, so that each round finds something to do."""
    create, names = world.queues.create, []

    def create_and_start_another(name: str, *arguments: Any) -> None:
        create(name, *arguments)
        names.append(name)
        if len(names) <= MAX_ROUNDS:
            replace(world.control, may_go_on=lambda: False).start(FILTERS, owner="other")

    world.queues.create = create_and_start_another  # type: ignore[assignment, method-assign]
    world.store.registry = structs.replace(world.control.view(), version=0)
    replace(world.control, may_go_on=lambda: False).start(FILTERS, owner="me")
    world.control.advance()
    assert len(names) == MAX_ROUNDS
    assert {world.store.registry.queues[name].state for name in names} == {QueueState.CREATED}


def test_one_write_takes_whole_sessions_and_the_asked_one_first(world: World) -> None:
    """There is room for so many items only; what is left ends at the next tick."""
    number = CHANGES_AT_ONCE // 2 + 5
    sessions = [world.start() for _ in range(number)]
    world.pass_s(2)
    world.clock.ms += 31_000
    saved: list[tuple[Registry, Registry]] = []
    save = world.store.save

    def note(before: Registry, after: Registry, *, revision: int) -> int | None:
        saved.append((before, after))
        return save(before, after, revision=revision)

    world.store.save = note  # type: ignore[method-assign]
    replace(world.control, may_go_on=lambda: False).advance([TimePassed(), SessionStopped(sessions[-1])])
    [(before, after)] = saved
    ended = {session.session_id for session in after.sessions.values() if session.status not in ALIVE}
    assert sessions[-1] in ended
    assert {queue.session_id for queue in after.queues.values() if queue.condemned} == ended
    assert len(ended) == CHANGES_AT_ONCE // 2
    assert after.splits == before.splits  # it isn't idle: sessions are left
    for _ in range(2):
        world.pass_s(1)
    assert world.store.registry.sessions == {}


def test_a_sweep_goes_on_where_a_queue_is_gone_already(world: World) -> None:
    world.start()
    name = f"sluice-tmp-{SETTINGS.deployment}999999999999-x"
    world.queues.messages[name] = []
    world.queues.gone.add(name)
    assert world.control.sweep() == [name]
    assert world.control.sweep() == []


def test_a_queue_is_deleted_only_when_sqs_counts_are_sure_that_it_is_empty(world: World) -> None:
    control = replace(world.control, settings=replace(SETTINGS, counts_settle_s=60))
    session_id = world.start()
    control.stop(session_id, Reason.STOPPED)
    for seconds, deleted in ((0, False), (59, False), (1, True)):
        world.clock.ms += seconds * 1_000
        control.advance()
        assert (("delete", SESSION_QUEUE) in world.queues.calls) is deleted


def test_what_was_done_is_written_while_there_is_more_to_do(world: World) -> None:
    """An invocation that dies has got so far: else too much to do at once would never be done."""
    sessions = [world.start() for _ in range(3)]
    world.pass_s(2)
    delete, deleted = world.queues.delete, list[str]()

    def slow(name: str) -> None:
        if len(deleted) == 2:
            raise KeyboardInterrupt
        deleted.append(name)
        world.clock.ms += WRITTEN_EVERY_MS
        delete(name)

    world.queues.delete = slow  # type: ignore[method-assign]
    world.control.advance([SessionStopped(session_id) for session_id in sessions])
    with pytest.raises(KeyboardInterrupt):
        world.control.advance()
    assert len(deleted) == 2
    assert len(world.store.registry.queues) == 1
