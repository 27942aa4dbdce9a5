"""The control function with consumers that are re-pointed, in memory: to main with the first session, and back."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace as changed

from sluice.errors import BadConfiguration, BadConsumer, CallFailed
from sluice.splitting.consumers.targets import (
    Consumer,
    Consumers,
    LambdaVariable,
    SystemsManagerParameter,
    Target,
    describe_target,
)
from sluice.splitting.control import LATER_S, Control, RegistryCache, compute_next_tick_s
from sluice.splitting.filters.values import Filter, QueueFilter
from sluice.splitting.operation_handler import OperationHandler
from sluice.splitting.operations import SplittingView
from sluice.splitting.pointing import HOLD_MS
from sluice.splitting.sessions.actions import SwitchSplitter
from sluice.splitting.sessions.events import ConsumersHeld, SplitterSwitched
from sluice.splitting.sessions.state import Phase, Reason, Registry, Split, Status
from sluice.splitting.settings import Repointed, SplitConfig
from tests.fakes import Clock
from tests.splitting_fakes import SETTINGS, FakeConsumers, FakeRegistryStore, FakeSplitQueues, pointing

FILTERS = {"q": QueueFilter(filter=Filter(attributes=(("client", "a"),)))}
VARIABLE: Target = LambdaVariable(function="orders", variable="QUEUE")
PARAMETER: Target = SystemsManagerParameter(name="/queue")
REPOINTED = Repointed(queue_id="q", trigger_id="trigger", targets=(VARIABLE, PARAMETER))


@dataclass
class World:
    """A control function, a split queue that others own, and what says which queue its consumers read."""

    clock: Clock = field(default_factory=Clock)
    store: FakeRegistryStore = field(default_factory=FakeRegistryStore)
    queues: FakeSplitQueues = field(default_factory=FakeSplitQueues)
    consumers: FakeConsumers = field(default_factory=FakeConsumers)
    repointed: tuple[Repointed, ...] = (REPOINTED,)
    tokens: "itertools.count[int]" = field(default_factory=itertools.count)
    source: str = "source"
    drain_timeout_s: int | None = None

    def __post_init__(self) -> None:
        self.queues.attributes[self.source] = {"VisibilityTimeout": "77"}
        self.consumers.texts = {
            describe_target(target): self.source for each in self.repointed for target in each.targets
        }
        self.consumers.triggers["trigger"] = False

    def control(self) -> Control:
        """A new invocation's, in another environment."""
        token = self.new_token
        return Control(
            registry_cache=RegistryCache(self.store),
            queues=self.queues,
            pointing=pointing(*self.repointed, consumers=self.consumers, now_ms=self.clock, holder=token()),
            settings=changed(SETTINGS, split_queues=(self.config,) if self.repointed else ()),
            now_ms=self.clock,
            new_token=token,
            may_go_on=lambda: True,
        )

    def show(self) -> SplittingView:
        return OperationHandler(
            control=self.control(), compile_problem=lambda _: None, counts=dict, url=lambda name: name
        ).show_splitting()

    @property
    def config(self) -> SplitConfig:
        return SplitConfig(queue_id="q", source=self.source, drain_timeout_s=self.drain_timeout_s)

    def new_token(self) -> str:
        return f"{next(self.tokens):012d}"

    def start(self) -> str:
        return self.control().start(FILTERS, owner="me")

    def tick(self, seconds: float = 1) -> None:
        self.clock.ms += int(seconds * 1000)
        self.control().advance()

    def until(self, done: Callable[[], bool]) -> None:
        for _ in range(50):
            if done():
                return
            self.tick()
        pytest.fail(f"not within 50 ticks: {self.store.registry}")

    def ensure_started(self, *, linger_s: int = 0) -> str:
        session_id = self.control().start(FILTERS, owner="me", linger_s=linger_s)
        self.until(lambda: self.store.registry.sessions[session_id].status is Status.READY)
        return session_id

    @property
    def phase(self) -> Phase:
        return self.store.registry.splits["q"].phase

    @property
    def at(self) -> set[str]:
        return set(self.consumers.texts.values())


@pytest.fixture
def world() -> World:
    return World()


def test_a_first_session_moves_all_consumers_to_a_main_queue_and_the_last_ones_end_puts_them_back(world: World):
    session_id = world.ensure_started()
    [main] = world.at
    assert main.startswith(f"sluice-tmp-{SETTINGS.deployment}")
    assert "-main-source" in main
    assert main in world.queues.attributes
    assert world.consumers.triggers["trigger"]
    world.control().stop(session_id, Reason.STOPPED)
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert world.at == {"source"}
    assert not world.consumers.triggers["trigger"]
    assert ("delete", main) in world.queues.calls
    assert world.store.registry.find_consumers("q").held_by == ""
    assert compute_next_tick_s(world.store.registry) is None


def test_the_splitter_reads_the_source_only_while_all_consumers_read_main(world: World):
    world.start()
    while not world.consumers.triggers["trigger"]:
        assert "source" in world.at or not world.store.registry.splits["q"].may_forward
        world.tick()
    assert len(world.at) == 1
    assert "source" not in world.at


def test_what_the_consumers_are_is_known_before_any_is_changed(world: World):
    world.start()
    while world.at == {"source"}:
        world.tick()
    known = world.store.registry.find_consumers("q").consumers
    assert [each.original for each in known] == ["source", "source"]
    assert all(each.to is not None for each in known)


def test_a_consumer_that_isnt_there_refuses_the_session_and_leaves_the_others_alone(world: World):
    world.consumers.bad.add(describe_target(PARAMETER))
    session_id = world.start()
    world.until(lambda: world.store.registry.sessions[session_id].status is Status.START_ERROR)
    assert "/queue" in world.store.registry.sessions[session_id].reason
    assert world.at == {"source"}
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)


def test_a_role_that_cant_read_main_refuses_the_session_and_no_consumer_is_touched(world: World):
    lacking = BadConsumer(describe_target(PARAMETER), "its role lacks sqs:ReceiveMessage")
    world.consumers.roles[describe_target(PARAMETER)] = lacking
    session_id = world.start()
    world.until(lambda: world.store.registry.sessions[session_id].status is Status.START_ERROR)
    assert "lacks sqs:ReceiveMessage" in world.store.registry.sessions[session_id].reason
    assert all(each.to is None for each in world.store.registry.find_consumers("q").consumers)
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)


def test_a_role_that_nobody_may_simulate_is_said_and_moves(world: World):
    world.consumers.roles[describe_target(VARIABLE)] = "SimulatePrincipalPolicy: AccessDenied"
    world.start()
    world.until(lambda: bool(world.consumers.warnings))
    assert world.consumers.warnings == [("RoleNotProved", "q", "SimulatePrincipalPolicy: AccessDenied")]
    [shown] = world.show().splits
    assert "AccessDenied" in shown.not_moved
    world.until(lambda: world.at != {"source"})


def test_one_that_cant_be_moved_midway_has_the_others_put_back(world: World):
    session_id = world.start()
    world.until(lambda: world.store.registry.splits["q"].consumer_at is None)
    world.consumers.bad.add(describe_target(PARAMETER))
    world.until(lambda: world.store.registry.sessions[session_id].status is Status.START_ERROR)
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert world.consumers.texts[describe_target(VARIABLE)] == "source"


def test_one_that_cant_be_put_back_for_now_keeps_no_other_from_it(world: World):
    session_id = world.ensure_started()
    world.consumers.failing.add(describe_target(VARIABLE))
    world.control().stop(session_id, Reason.STOPPED)
    world.until(lambda: world.consumers.texts[describe_target(PARAMETER)] == "source")
    assert world.consumers.texts[describe_target(VARIABLE)] != "source"
    assert {what for what, _, _ in world.consumers.warnings} == {"ConsumerNotMoved"}
    world.tick()
    [shown] = world.show().splits
    assert world.show().queues[0].variables == ("QUEUE",)
    assert (shown.phase, shown.waits_for) == (Phase.RESTORING, "its consumers to read source")
    assert world.store.registry.splits["q"].is_consumer_away
    assert "ThrottlingException" in shown.not_moved
    main = world.store.registry.splits["q"].main
    on_the_way = {describe_target(VARIABLE): f"on the way from {main} to source", describe_target(PARAMETER): "source"}
    assert shown.consumers == on_the_way
    world.consumers.failing.clear()
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert world.at == {"source"}
    assert world.show().splits == ()


NO_ROLE = "The provided execution role does not have permissions to call ReceiveMessage on SQS"
NO_QUEUE = "Error occurred while ReceiveMessage. SQS Error Code: AWS.SimpleQueueService.NonExistentQueue"


@pytest.mark.parametrize(
    "error",
    [
        CallFailed("CreateEventSourceMapping", "InvalidParameterValueException", NO_ROLE),
        CallFailed("UpdateService", "FAILED", "ECS deployment circuit breaker: tasks failed to start."),
    ],
)
def test_a_refusal_for_good_ends_the_session_at_once_with_the_words_of_aws(world: World, error: CallFailed):
    world.consumers.failing.add(describe_target(VARIABLE))
    world.consumers.error = error
    session_id, began_ms = world.start(), world.clock.ms
    world.until(lambda: world.store.registry.sessions[session_id].status is Status.START_ERROR)
    assert world.clock.ms - began_ms < 30_000
    assert str(error) in world.store.registry.sessions[session_id].reason
    world.tick()
    assert not world.store.registry.splits["q"].is_at_rest  # the way back isn't given up
    world.consumers.failing.clear()
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert world.at == {"source"}


def test_a_queue_that_lambda_does_not_see_yet_is_no_refusal(world: World):
    world.consumers.failing.add(describe_target(VARIABLE))
    world.consumers.error = CallFailed("CreateEventSourceMapping", "InvalidParameterValueException", NO_QUEUE)
    session_id = world.start()
    for _ in range(5):
        world.tick()
    assert world.store.registry.sessions[session_id].status is Status.STARTING
    world.consumers.failing.clear()
    world.until(lambda: world.store.registry.sessions[session_id].status is Status.READY)


@pytest.mark.parametrize(
    ("phase", "reads", "fifo", "waits_for"),
    [
        (Phase.ACTIVE, None, False, "its consumers to read main"),
        (Phase.ACTIVE, "main", False, "its sessions"),
        (Phase.RELEASING, "main", False, "the splitter to be switched off"),
        (Phase.DRAINING, "main", False, "running splitters"),
        (Phase.DRAINING, "main", True, "its consumers to empty the main queue"),
        (Phase.RESTORING, "main", False, "its consumers to read source"),
        (Phase.RESTORING, "source", False, "the main queue to be emptied"),
        (Phase.IDLE, None, False, "its consumers to read source"),
    ],
)
def test_what_each_phase_waits_for_is_shown(phase: Phase, reads: str | None, fifo: bool, waits_for: str):
    suffix = ".fifo" if fifo else ""
    source, main = f"source{suffix}", f"main{suffix}"
    shown = Split(
        queue_id="q", source=source, static=False, main=main, consumer_at=reads and reads + suffix, phase=phase
    )
    assert shown.waits_for == waits_for
    assert not shown.is_at_rest


def test_where_the_consumers_are_is_shown_without_a_problem(world: World):
    world.ensure_started()
    [shown] = world.show().splits
    main = world.store.registry.splits["q"].main
    assert (shown.waits_for, shown.not_moved) == ("its sessions", "")
    assert shown.consumers == {describe_target(VARIABLE): main, describe_target(PARAMETER): main}


def test_what_its_owner_has_changed_since_stays(world: World):
    session_id = world.ensure_started()
    world.consumers.texts[describe_target(VARIABLE)] = "theirs"
    world.control().stop(session_id, Reason.STOPPED)
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert world.consumers.texts == {describe_target(VARIABLE): "theirs", describe_target(PARAMETER): "source"}
    assert [what for what, _, _ in world.consumers.warnings] == ["ConsumerNotPutBack"]


def test_a_session_that_ends_on_the_way_turns_the_consumers_round(world: World):
    session_id = world.start()
    world.until(lambda: world.store.registry.splits["q"].consumer_at is None)
    world.control().stop(session_id, Reason.STOPPED)
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert world.at == {"source"}


def test_a_trigger_that_a_deployment_has_switched_off_is_switched_on_again(world: World):
    world.ensure_started()
    world.consumers.triggers["trigger"] = False
    world.tick()
    assert world.consumers.triggers["trigger"]


def test_a_consumer_that_its_owner_puts_back_amid_a_split_is_moved_again(world: World):
    world.ensure_started()
    [main] = world.at
    world.consumers.texts[describe_target(VARIABLE)] = "source"
    world.tick()
    assert world.at == {main, "source"}  # it isn't looked for at every tick
    world.control().sweep()
    assert not world.store.registry.splits["q"].may_forward
    world.until(lambda: world.at == {main} and world.store.registry.splits["q"].may_forward)
    assert [what for what, _, _ in world.consumers.warnings] == ["ConsumerStrayed"]
    version = world.store.registry.version
    world.control().sweep()
    assert world.store.registry.version == version


def draining_fifo(drain_timeout_s: int | None = None) -> tuple[World, str]:
    """A FIFO queue after its last session, with a message in main that the consumer never finishes."""
    world = World(source="source.fifo", drain_timeout_s=drain_timeout_s)
    session_id = world.ensure_started()
    [main] = world.at
    world.control().stop(session_id, Reason.STOPPED)
    world.queues.send_batch(main, [{"Id": "0", "MessageBody": "left", "MessageGroupId": "g"}])
    world.until(lambda: world.phase is Phase.DRAINING)
    return world, main


def test_one_that_its_owner_puts_back_while_main_drains_reads_what_is_there_first():
    world, main = draining_fifo()
    world.consumers.texts[describe_target(VARIABLE)] = "source.fifo"
    world.control().sweep()
    world.until(lambda: world.at == {main})
    assert world.phase is Phase.DRAINING
    world.queues.messages[main].clear()
    world.tick(61)
    world.tick(61)
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert world.at == {"source.fifo"}


def test_a_message_that_the_consumer_fails_at_keeps_a_standard_queue_from_nothing(world: World):
    session_id = world.ensure_started()
    [main] = world.at
    world.control().stop(session_id, Reason.STOPPED)
    world.queues.send_batch(main, [{"Id": "0", "MessageBody": "poison"}])
    ended_ms = world.clock()
    world.until(lambda: world.at == {"source"})
    assert world.clock() - ended_ms <= 30_000


def test_a_deployment_limits_a_drain_that_has_begun():
    world, main = draining_fifo()
    world.tick(3_600)
    assert (world.phase, world.at) == (Phase.DRAINING, {main})
    world.drain_timeout_s = 900
    world.until(lambda: world.at == {"source.fifo"})


def test_a_drain_is_ended_by_hand_and_nothing_else_is():
    world, main = draining_fifo(drain_timeout_s=900)
    assert world.at == {main}
    world.control().release_queue("q")
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert world.at == {"source.fifo"}
    assert [message.body for message in world.queues.messages["source.fifo"]] == ["left"]
    for queue_id, cause in (("q", "isn't being drained: it is idle"), ("r", "no such queue")):
        with pytest.raises(BadConfiguration, match=cause):
            world.control().release_queue(queue_id)


def test_consumers_stay_where_they_are_while_a_session_lingers_and_the_next_one_finds_them_there(world: World):
    session_id = world.ensure_started(linger_s=300)
    [main] = world.at
    world.control().stop(session_id, Reason.STOPPED)
    for _ in range(4):
        world.tick(60)
    assert (world.phase, world.at, world.store.registry.splits["q"].may_forward) == (Phase.ACTIVE, {main}, True)
    assert world.show().splits[0].waits_for == "its sessions, or the end of their linger time"
    again = world.start()
    world.tick()
    assert world.at == {main}
    world.control().stop(again, Reason.STOPPED)
    assert compute_next_tick_s(world.store.registry) is not None
    world.until(lambda: again not in world.store.registry.sessions)
    assert compute_next_tick_s(world.store.registry) == LATER_S
    world.tick(60)
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert world.at == {"source"}
    assert world.store.registry.splits["q"].lingers_until_ms == 0


def test_a_linger_time_is_ended_by_hand(world: World):
    world.control().stop(world.ensure_started(linger_s=3_600), Reason.STOPPED)
    world.tick(60)
    world.control().release_queue("q")
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert world.at == {"source"}
    world.control().stop(world.ensure_started(), Reason.STOPPED)
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)


def test_one_that_its_owner_has_let_read_another_queue_amid_a_split_stays_there(world: World):
    world.ensure_started()
    world.consumers.texts[describe_target(VARIABLE)] = "theirs"
    world.control().sweep()
    world.tick()
    assert world.consumers.texts[describe_target(VARIABLE)] == "theirs"
    assert world.store.registry.splits["q"].may_forward


def test_one_that_has_strayed_and_cant_be_moved_any_more_ends_the_sessions_with_the_reason(world: World):
    session_id = world.ensure_started()
    world.consumers.texts[describe_target(VARIABLE)] = "source"
    world.control().sweep()
    world.consumers.bad.add(describe_target(VARIABLE))
    world.until(lambda: session_id not in world.store.registry.sessions)
    assert "orders" in world.store.reasons[session_id]
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert world.consumers.texts[describe_target(PARAMETER)] == "source"


def test_one_that_cant_be_looked_at_counts_as_there(world: World):
    world.ensure_started()
    world.consumers.texts[describe_target(VARIABLE)] = "source"
    world.consumers.failing.add(describe_target(VARIABLE))
    world.control().sweep()
    assert world.store.registry.splits["q"].may_forward


def restoring(world: World) -> str:
    """A split after its last session, whose invocation ended just before the consumers go back from this main queue."""
    session_id = world.ensure_started()
    [main] = world.at
    world.consumers.failing |= set(world.consumers.texts)
    world.control().stop(session_id, Reason.STOPPED)
    world.until(lambda: world.phase is Phase.RESTORING)
    world.consumers.failing.clear()
    registry = world.store.registry
    there = [changed(consumer, at=main, to=None) for consumer in registry.find_consumers("q").consumers]
    registry = registry.with_consumers(changed(registry.find_consumers("q"), consumers=tuple(there)))
    world.store.registry = registry.with_split(changed(registry.splits["q"], consumer_at=main))
    return main


def test_a_session_that_begins_after_a_deployment_named_the_source_again_has_the_consumer_moved(world: World):
    main = restoring(world)
    world.consumers.texts[describe_target(VARIABLE)] = "source"
    world.ensure_started()
    assert len(world.at) == 1
    assert not world.at & {main, "source"}


def test_a_consumer_that_its_owner_let_read_another_queue_fails_the_next_session_and_no_later_one(world: World):
    restoring(world)
    world.consumers.texts[describe_target(VARIABLE)] = "theirs"
    session_id = world.start()
    world.until(lambda: world.store.registry.sessions[session_id].status is Status.START_ERROR)
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert world.consumers.texts == {describe_target(VARIABLE): "theirs", describe_target(PARAMETER): "source"}
    world.consumers.texts[describe_target(VARIABLE)] = "source"
    world.ensure_started()
    assert "source" not in world.at


def test_what_isnt_configured_any_more_is_put_back(world: World):
    session_id = world.ensure_started()
    world.repointed = ()
    world.control().stop(session_id, Reason.STOPPED)
    world.until(lambda: "q" not in world.store.registry.splits)
    assert world.at == {"source"}


def test_a_queue_that_a_deployment_takes_out_amid_a_split_ends_its_sessions_and_put_back_its_consumers_return(
    world: World,
):
    """Plain `cdk deploy` asks nobody: the trigger is gone, and with it the right to change the consumers."""
    session_id = world.ensure_started()
    configured, world.repointed = world.repointed, ()
    world.consumers.failing |= world.consumers.texts.keys()
    world.consumers.error = CallFailed("UpdateFunctionConfiguration", "AccessDenied", "not authorized")
    world.until(lambda: bool(world.consumers.warnings))
    assert world.store.reasons[session_id] == Reason.QUEUE_REMOVED
    assert "source" not in world.at
    [shown] = world.show().splits
    assert (shown.waits_for, "AccessDenied" in shown.not_moved) == ("its consumers to read source", True)
    world.repointed = configured  # the entry is in cdk.json again, and deployed
    world.consumers.failing.clear()
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert world.at == {"source"}
    world.ensure_started()


def test_one_invocation_at_a_time_moves_consumers_until_it_cant_live_any_more(world: World):
    world.start()
    world.until(lambda: world.store.registry.splits["q"].consumer_at is None)
    registry = world.store.registry
    held = ConsumersHeld("q", "another", world.clock() + HOLD_MS)(registry, world.clock())
    assert held.find_consumers("q").held_by == "another"
    world.store.registry = held
    before = dict(world.consumers.texts)
    world.tick(HOLD_MS / 1000 - 1)
    assert world.consumers.texts == before
    world.tick(2)
    assert world.consumers.texts != before or world.store.registry.splits["q"].consumer_at is not None


@pytest.mark.parametrize(
    ("at", "to", "wanted", "leg"),
    [
        (None, None, "main", None),
        ("source", None, "source", None),
        ("source", None, "main", ("main", ("source",))),
        ("source", "main", "main", ("main", ("source",))),
        ("source", "main", "source", ("source", ("main",))),
        ("main", None, "other", ("other", ("main", "source"))),
        ("main", "source", "other", ("source", ("main",))),
        ("main", "other", "other", ("other", ("main", "source"))),
        ("main", "other", "source", ("source", ("main", "other"))),
        ("main", "other", "third", ("source", ("main", "other"))),
    ],
)
def test_a_consumer_on_its_way_to_a_queue_that_isnt_wanted_any_more_goes_by_the_source(
    at: str | None, to: str | None, wanted: str, leg: tuple[str, tuple[str, ...]] | None
):
    assert changed(Consumer(target=VARIABLE), at=at, to=to).next_move(wanted, source="source") == leg


def test_a_trigger_that_another_invocation_is_about_to_switch_is_not_believed() -> None:
    """Its late call would switch the trigger on after all, and nobody would look again."""
    world = World()
    held = Consumers(queue_id="q", splitter_on=None, held_by="another", held_until_ms=world.clock.ms + HOLD_MS)
    registry = Registry(splits={"q": Split(queue_id="q", source="source", static=False)}, consumers={"q": held})
    switch = SwitchSplitter("q", on=False)
    assert list(world.control().pointing.run_action(switch, registry)) == []
    world.clock.ms += HOLD_MS
    assert list(world.control().pointing.run_action(switch, registry)) == [SplitterSwitched("q", False)]
