"""From the first session to the put-back: the control function, and a workload on an API server, fast and real.

Queues and the registry are in memory; the control function is killed before and after each call of the API server.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.aws.splitting.consumers.targets import AwsConsumers
from sluice.cli.splitting.agents import Agent
from sluice.kubernetes.api import Api, api_path
from sluice.splitting.consumers.targets import KubernetesWorkload, Target
from sluice.splitting.pointing import HOLD_MS
from sluice.splitting.sessions.state import Reason, Status
from sluice.splitting.settings import Repointed
from tests.kubernetes.cluster import ARGO, KEDA, RBAC, Cluster, Json, documented_roles, target_of
from tests.kubernetes.servers import Server
from tests.kubernetes.workloads import SCALED, consumers, made, scaled, state
from tests.many_cases import one_of
from tests.splitting_fakes import SETTINGS, FakeConsumers
from tests.unit.splitting.test_agents import answer_of
from tests.unit.splitting.test_pointing import World

POD: Json = {
    "containers": [
        {"name": "app", "image": "app:1", "envFrom": [{"configMapRef": {"name": "theirs"}}]},
        {"name": "side", "image": "side:1", "env": [{"name": "QUEUE", "value": "source"}]},
    ]
}
MAX_CALLS = 100
MAX_TICKS = 60


class Killed(BaseException):
    """The function's process is gone; nothing catches that."""


@dataclass
class OfCluster(FakeConsumers):
    """Consumers of a cluster, and the splitter's trigger in memory."""

    real: AwsConsumers = field(kw_only=True)

    def read_original(self, target: Target, *, queue: str) -> str:
        return self.real.read_original(target, queue=queue)

    def point(self, target: Target, original: str, *, queue: str, instead_of: Collection[str]) -> bool:
        return self.real.point(target, original, queue=queue, instead_of=instead_of)

    def reads(self, target: Target, *, queue: str) -> bool:
        return self.real.reads(target, queue=queue)


@dataclass
class Killing:
    """Kills whoever makes the call of this number, before or after the server has served it."""

    api: Api
    place: int = MAX_CALLS
    after: bool = False
    calls: int = 0

    def send(self, method: str, path: str, body: Json | None) -> tuple[int, Json]:
        self.calls += 1
        if self.calls == self.place + 1 and not self.after:
            raise Killed
        answer = self.api.send(method, path, body)
        if self.calls == self.place + 1:
            raise Killed
        return answer


def unreachable(_method: str, _path: str, _body: Json | None) -> tuple[int, Json]:
    raise AssertionError("the control function asks the cluster")


def deployed(server: Server, **annotations: str) -> Cluster:
    cluster = made(server)
    cluster.config_map("theirs", QUEUE="source", A="a")
    cluster.deploy(POD, annotations=annotations)
    queue = {"type": "aws-sqs-queue", "metadata": {"queueURLFromEnv": "QUEUE"}}
    cluster.put(KEDA, "scaledobjects", {**SCALED, "spec": {**SCALED["spec"], "triggers": [queue]}})
    return cluster


def world_of(cluster: Cluster, api: Api, **told: Any) -> World:
    target: KubernetesWorkload = target_of(cluster, env="QUEUE", **told)
    repointed = Repointed(queue_id="q", trigger_id="trigger", targets=(target,))
    return World(consumers=OfCluster(real=consumers(api)), repointed=(repointed,))


def until(world: World, roll: Callable[[], object], done: Callable[[], bool], *, seconds: float = 1) -> None:
    """Let the control function run, which may be killed, and the workload's controller, in turn."""
    for _ in range(MAX_TICKS):
        if done():
            return
        for session_id in world.store.registry.sessions:
            world.store.record_heartbeat(session_id, at_ms=world.clock.ms)
        with suppress(Killed):
            world.tick(seconds)
        roll()
    pytest.fail(f"not within {MAX_TICKS} ticks: {world.store.registry}")


def ready(world: World, cluster: Cluster, *, seconds: float = 1) -> str:
    session_id = world.start()
    until(
        world, cluster.roll, lambda: world.store.registry.sessions[session_id].status is Status.READY, seconds=seconds
    )
    return session_id


def ended(world: World, cluster: Cluster, session_id: str, *, seconds: float = 1) -> None:
    world.control().stop(session_id, Reason.STOPPED)
    until(world, cluster.roll, lambda: world.store.registry.splits["q"].is_at_rest, seconds=seconds)


def reads(cluster: Cluster) -> set[str]:
    """What the pods that there are were made to read, but for what comes of a ConfigMap."""
    containers = [container for pod in cluster.pods() for container in pod["spec"]["containers"]]
    return {entry["value"] for container in containers for entry in container.get("env", [])}


@one_of(6)
def test_whenever_it_is_killed_a_session_gets_its_queue_and_all_is_put_back(server: Server, every: int) -> None:
    for after in (False, True):
        for place in range(every // 2 if after else 0, MAX_CALLS, every):
            cluster = deployed(server)
            killing = Killing(cluster.role, place, after)
            world, first, triggers = world_of(cluster, Api(killing.send)), state(cluster), scaled(cluster)
            session_id = ready(world, cluster, seconds=HOLD_MS / 4_000)
            (main,) = reads(cluster)
            assert main.startswith(f"sluice-tmp-{SETTINGS.deployment}")
            assert scaled(cluster) == [{"queueURLFromEnv": "QUEUE", "queueURL": main}]
            assert world.consumers.triggers["trigger"]
            ended(world, cluster, session_id, seconds=HOLD_MS / 4_000)
            assert (state(cluster), scaled(cluster), reads(cluster)) == (first, triggers, {"source"})
            assert not world.consumers.triggers["trigger"]
            if killing.calls <= place:
                break


def test_an_agent_lets_a_workload_read_main_and_puts_it_back(server: Server) -> None:
    cluster = deployed(server)
    world, first = world_of(cluster, Api(unreachable), agent=True), state(cluster)
    agent = Agent(
        name="agent",
        clusters=(target_of(cluster, env="QUEUE").cluster,),
        consumers=consumers(cluster.role),
        ask=lambda operation: answer_of(world.control(), operation),
        now_s=lambda: world.clock() / 1_000,
    )

    def rolled() -> None:
        agent.apply_pending_steps()
        cluster.roll()

    session_id = world.start()
    until(world, rolled, lambda: world.store.registry.sessions[session_id].status is Status.READY)
    (main,) = reads(cluster)
    assert main.startswith(f"sluice-tmp-{SETTINGS.deployment}")
    world.control().stop(session_id, Reason.STOPPED)
    until(world, rolled, lambda: world.store.registry.splits["q"].is_at_rest)
    assert (state(cluster), reads(cluster)) == (first, {"source"})


def test_a_session_that_ends_while_pods_are_replaced_has_them_put_back(server: Server) -> None:
    cluster = deployed(server)
    world, first = world_of(cluster, cluster.role), state(cluster)
    session_id = world.start()
    while state(cluster) == first:
        world.tick()
    cluster.begin()
    ended(world, cluster, session_id)
    assert state(cluster) == first


def test_a_deployment_of_its_owner_amid_a_split_is_moved_again_and_put_back(server: Server) -> None:
    cluster = deployed(server)
    world, first = world_of(cluster, cluster.role), state(cluster)
    session_id = ready(world, cluster)
    (main,) = reads(cluster)

    def deploy(workload: Json) -> None:
        workload["spec"]["template"]["spec"] = {**first[0]["template"]["spec"]}
        workload["spec"]["template"]["spec"]["containers"][0]["image"] = "app:2"

    cluster.change("Deployment", deploy)
    cluster.roll()
    assert reads(cluster) == {"source"}
    world.control().sweep()
    until(world, cluster.roll, lambda: reads(cluster) == {main})
    until(world, cluster.roll, lambda: world.store.registry.splits["q"].consumer_at == main)
    ended(world, cluster, session_id)
    spec = cluster.workload()["spec"]["template"]["spec"]
    assert [container["image"] for container in spec["containers"]] == ["app:2", "side:1"]
    assert (reads(cluster), "env" in spec["containers"][0]) == ({"source"}, False)


def test_a_session_that_argo_cd_would_undo_fails_with_the_reason(server: Server) -> None:
    cluster = deployed(server, **{"argocd.argoproj.io/tracking-id": "shop:apps/Deployment:shop/orders"})
    spec = {"syncPolicy": {"automated": {"selfHeal": True}}}
    application = {"kind": "Application", "metadata": {"name": "shop"}, "spec": spec}
    cluster.put(ARGO, "applications", application, namespace=cluster.argo)
    world, first = world_of(cluster, cluster.role), state(cluster)
    session_id = world.start()
    world.until(lambda: world.store.registry.sessions[session_id].status is Status.START_ERROR)
    assert "heals itself and would undo the change" in world.store.registry.sessions[session_id].reason
    world.until(lambda: world.store.registry.splits["q"].is_at_rest)
    assert state(cluster) == first


@pytest.mark.parametrize("verb", ["get", "update"])
def test_a_session_fails_at_once_where_the_cluster_forbids_it(server: Server, verb: str) -> None:
    roles = documented_roles()
    roles[0]["rules"][0]["verbs"].remove(verb)
    cluster = Cluster(admin=server.admin, role=server.role)
    cluster.allow(roles)
    cluster.config_map("theirs", QUEUE="source")
    cluster.deploy(POD)
    world = world_of(cluster, cluster.role)
    session_id = world.start()
    world.until(lambda: world.store.registry.sessions[session_id].status is Status.START_ERROR)
    reason = world.store.registry.sessions[session_id].reason
    assert f'cannot {verb} resource "deployments" in API group "apps"' in reason


def test_who_may_not_put_it_back_for_now_goes_on_when_it_may(server: Server) -> None:
    cluster = deployed(server)
    world, first = world_of(cluster, cluster.role), state(cluster)
    session_id = ready(world, cluster)
    binding = api_path(RBAC, cluster.namespace, "rolebindings", "sluice")
    kept = cluster.admin.get_object(binding)
    cluster.admin.delete_object(binding)
    cluster.wait_for_rights(False)
    world.control().stop(session_id, Reason.STOPPED)
    until(world, cluster.roll, lambda: bool(world.consumers.warnings))
    assert {what for what, _, _ in world.consumers.warnings} == {"ConsumerNotMoved"}
    assert not world.store.registry.splits["q"].is_at_rest
    for each in ("resourceVersion", "uid"):
        del kept["metadata"][each]
    cluster.admin.create_object(api_path(RBAC, cluster.namespace, "rolebindings"), kept)
    cluster.wait_for_rights(True)
    until(world, cluster.roll, lambda: world.store.registry.splits["q"].is_at_rest)
    assert state(cluster) == first
