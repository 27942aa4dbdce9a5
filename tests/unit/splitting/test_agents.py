"""Agents beside the control function, in memory: who changes which consumer, and what becomes of what they say."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.cli.splitting.agents import MAX_STEP_S, Agent, BadCluster, parse_clusters
from sluice.codec import encode
from sluice.errors import BadConsumer, CallFailed, RequestRefused
from sluice.operations import Operation, build_reply, parse_request, parse_result
from sluice.splitting.consumers.targets import KubernetesWorkload, LambdaVariable, Target, describe_target
from sluice.splitting.control import Control
from sluice.splitting.operation_handler import OperationHandler
from sluice.splitting.operations import MAX_REPORT_CHARACTERS, ControlOperation, ReportSteps, StepReport, TakeSteps
from sluice.splitting.pointing import HOLD_MS, StepsLost
from sluice.splitting.sessions.state import Phase, Reason, Status
from sluice.splitting.settings import Repointed
from tests.splitting_fakes import FakeConsumers
from tests.unit.splitting.test_pointing import World as Repointing

OURS: Target = LambdaVariable(function="orders", variable="QUEUE")
THEIRS: Target = KubernetesWorkload(
    cluster="shop", namespace="shop", kind="Deployment", name="orders", env="QUEUE", agent=True
)


def answer_of(control: Control, operation: Operation[Any]) -> Any:
    """What a control function answers, over the wire."""
    asked = parse_request(encode(operation), ControlOperation)
    handler = OperationHandler(
        control=control, compile_problem=lambda _: None, counts=dict, url=lambda name: f"https://{name}"
    )
    return parse_result(operation, encode(build_reply(handler.apply(asked))))


@dataclass
class World(Repointing):
    """A split queue with a consumer of the control function's and one of an agent's, who has no other way to it."""

    theirs: FakeConsumers = field(default_factory=lambda: FakeConsumers(texts={describe_target(THEIRS): "source"}))
    repointed: tuple[Repointed, ...] = (Repointed(queue_id="q", trigger_id="trigger", targets=(OURS, THEIRS)),)

    def __post_init__(self) -> None:
        super().__post_init__()
        del self.consumers.texts[describe_target(THEIRS)]

    def ask(self, operation: Operation[Any]) -> Any:
        """What the control function answers."""
        return answer_of(self.control(), operation)

    def agent(self, *clusters: str, name: str = "agent", ask: Callable[[Operation[Any]], Any] | None = None) -> Agent:
        return Agent(
            name=name,
            clusters=clusters or ("shop",),
            consumers=self.theirs,
            ask=ask or self.ask,
            now_s=lambda: self.clock() / 1_000,
        )

    def until(self, done: Callable[[], bool], agent: Agent | None = None) -> None:
        """Until it is done, by the control function and an agent in turn."""

        def looked() -> bool:
            if agent is not None:
                agent.apply_pending_steps()
            return done()

        super().until(looked)

    def ready_by(self, agent: Agent) -> str:
        session_id = self.start()
        self.until(lambda: self.store.registry.sessions[session_id].status is Status.READY, agent)
        return session_id

    @property
    def at(self) -> set[str]:
        return {*self.consumers.texts.values(), *self.theirs.texts.values()}


@pytest.fixture
def world() -> World:
    return World()


def test_an_agent_and_the_control_function_move_what_is_theirs_and_put_it_back(world: World):
    agent = world.agent()
    session_id = world.ready_by(agent)
    [main] = world.at
    assert "-main-source" in main
    world.control().stop(session_id, Reason.STOPPED)
    world.until(lambda: world.store.registry.splits["q"].is_at_rest, agent)
    assert world.at == {"source"}
    assert world.store.registry.find_consumers("q").held_by == ""


def test_nothing_is_changed_before_an_agent_has_looked(world: World):
    session_id = world.start()
    for _ in range(20):
        world.tick()
    assert world.at == {"source"}
    assert world.store.registry.sessions[session_id].status is Status.STARTING


def test_the_control_function_writes_nothing_while_it_waits_for_an_agent(world: World):
    world.start()
    for _ in range(5):
        world.tick()
    revision = world.store.read_revision()
    for _ in range(20):
        world.tick()
    assert world.store.read_revision() == revision


def test_an_agent_of_other_clusters_has_nothing_to_do(world: World):
    world.start()
    world.until(lambda: world.store.registry.find_consumers("q").consumers[0].original is not None)
    assert world.agent("elsewhere").apply_pending_steps() > 1
    assert world.theirs.texts == {describe_target(THEIRS): "source"}
    assert world.store.registry.find_consumers("q").held_by == ""


def test_what_an_agent_refuses_ends_the_session_with_its_reason(world: World):
    world.theirs.bad.add(describe_target(THEIRS))
    session_id, agent = world.start(), world.agent()
    world.until(lambda: world.store.registry.sessions[session_id].status is Status.START_ERROR, agent)
    assert "shop/orders" in world.store.registry.sessions[session_id].reason
    world.until(lambda: world.store.registry.splits["q"].is_at_rest, agent)
    assert world.consumers.texts == {describe_target(OURS): "source"}


def test_what_fails_for_now_is_tried_again(world: World):
    agent, session_id = world.agent(), world.start()
    world.theirs.failing.add(describe_target(THEIRS))
    for _ in range(10):
        world.tick()
        agent.apply_pending_steps()
    assert {what for what, _, _ in world.consumers.warnings} == {"ConsumerNotMoved"}
    world.theirs.failing.clear()
    world.until(lambda: world.store.registry.sessions[session_id].status is Status.READY, agent)


@pytest.mark.parametrize(("code", "status"), [("Forbidden", Status.START_ERROR), ("Timeout", Status.STARTING)])
def test_what_an_api_denies_ends_the_session_and_what_may_pass_doesnt(world: World, code: str, status: Status):
    session_id = world.start()
    world.until(lambda: world.store.registry.find_consumers("q").consumers[0].original is not None)
    [step] = world.ask(TakeSteps(agent="a", clusters=("shop",))).steps
    failed = StepReport(
        queue_id="q", place=step.place, queue=step.queue, outcome="failed", text="GET: it is so", code=code
    )
    world.ask(ReportSteps(agent="a", reports=(failed,)))
    assert world.store.registry.sessions[session_id].status is status


def test_two_agents_dont_do_the_same_and_one_that_died_is_followed_when_its_time_is_up(world: World):
    world.start()
    world.until(lambda: world.store.registry.find_consumers("q").consumers[0].original is not None)
    taken = world.ask(TakeSteps(agent="first", clusters=("shop",)))
    assert [(step.queue, step.original) for step in taken.steps] == [("source", None)]
    assert taken.lease_s * 1_000 == HOLD_MS
    assert world.ask(TakeSteps(agent="second", clusters=("shop",))).steps == ()
    world.clock.ms += HOLD_MS
    assert len(world.ask(TakeSteps(agent="second", clusters=("shop",))).steps) == 1
    late = StepReport(queue_id="q", place=1, queue="source", outcome="seen", text="source")
    with pytest.raises(StepsLost, match="aren't held by first any more"):
        world.ask(ReportSteps(agent="first", reports=(late,)))


def test_an_agent_whose_machine_slept_begins_nothing(world: World):
    world.start()
    world.until(lambda: world.store.registry.find_consumers("q").consumers[0].original is not None)
    reported: list[Operation[Any]] = []

    def ask(operation: Operation[Any]) -> Any:
        answer = world.ask(operation)
        if isinstance(operation, ReportSteps):
            reported.append(operation)
        world.clock.ms += int(HOLD_MS - MAX_STEP_S * 1_000)  # the answer came, and the machine went to sleep
        return answer

    world.agent(ask=ask).apply_pending_steps()
    assert not reported


@pytest.mark.parametrize(
    "error", [CallFailed("Invoke", "Timeout", "in time"), RequestRefused("Malformed", "no such operation")]
)
def test_an_agent_outlives_what_asking_raises(world: World, error: Exception, capsys: pytest.CaptureFixture[str]):
    def ask(operation: Operation[Any]) -> Any:
        raise error

    assert world.agent(ask=ask).apply_pending_steps() == 5
    assert "trying again" in capsys.readouterr().err


def test_a_consumer_of_an_agents_that_drains_is_waited_for(world: World):
    agent = world.agent()
    session_id = world.ready_by(agent)
    world.control().stop(session_id, Reason.STOPPED)
    world.until(lambda: world.store.registry.splits["q"].phase is Phase.RESTORING)
    for _ in range(10):
        world.tick()
    assert world.theirs.texts != {describe_target(THEIRS): "source"}
    assert world.store.registry.splits["q"].phase is Phase.RESTORING
    world.until(lambda: world.store.registry.splits["q"].is_at_rest, agent)


def test_a_consumer_that_is_too_long_to_be_kept_ends_the_session_with_the_reason(world: World):
    world.theirs.read_original = lambda target, *, queue: "x" * (MAX_REPORT_CHARACTERS + 1)  # type: ignore[method-assign]  # one case
    agent, session_id = world.agent(), world.start()
    world.until(lambda: world.store.registry.sessions[session_id].status is Status.START_ERROR, agent)
    assert "16385 characters, over 16384" in world.store.registry.sessions[session_id].reason


def test_words_of_any_number_are_cut(world: World):
    words = "x" * (MAX_REPORT_CHARACTERS + 1)

    def refused(target: Target, *, queue: str) -> str:
        raise BadConsumer(describe_target(target), words)

    world.theirs.read_original = refused  # type: ignore[method-assign]  # one case
    agent, session_id = world.agent(), world.start()
    world.until(lambda: world.store.registry.sessions[session_id].status is Status.START_ERROR, agent)
    assert len(world.store.registry.sessions[session_id].reason) == MAX_REPORT_CHARACTERS


def test_a_cluster_has_a_context_of_its_name_or_another():
    assert parse_clusters(["shop", "eu=arn:aws:eks:eu-central-1:123456789012:cluster/eu"]) == {
        "shop": "shop",
        "eu": "arn:aws:eks:eu-central-1:123456789012:cluster/eu",
    }


@pytest.mark.parametrize("clusters", [[""], ["=context"], ["shop="], ["shop", "shop=other"]])
def test_what_says_no_cluster_is_refused(clusters: list[str]):
    with pytest.raises(BadCluster, match="--cluster"):
        parse_clusters(clusters)
