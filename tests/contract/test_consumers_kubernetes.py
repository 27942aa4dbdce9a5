"""Workloads of a Kubernetes cluster read another queue, and then the first again: on an API server.

It has no controllers: what they do is done between the calls.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from sluice.errors import BadConsumer, CallFailed
from sluice.kubernetes.api import Api, api_path
from sluice.kubernetes.connections import connect_by_kubeconfig
from sluice.splitting.consumers.targets import Place
from tests.interruptions import Interruptions, each_interruption
from tests.kubernetes.cluster import KEDA, Cluster, Json, target_of
from tests.kubernetes.servers import Server
from tests.kubernetes.workloads import (
    BARE,
    FILE,
    FROM_ALL,
    KINDS,
    LITERAL,
    MAIN,
    MAIN_OF_RETURNS,
    MOUNTED,
    PLACES,
    RETURNS,
    SCALED,
    SOURCE,
    URL,
    back,
    consumers,
    made,
    read,
    scaled,
    state,
    there,
)
from tests.many_cases import one_of


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_new_pods_read_the_other_queue_and_then_the_first_by_the_same_template(
    cluster: Cluster, place: str, kind: str
) -> None:
    pod, told, reads = PLACES[place]
    cluster.deploy(pod, kind=kind)
    target, ours = target_of(cluster, kind=kind, **told), consumers(cluster.role)
    first = state(cluster, kind)
    original = ours.read_original(target, queue=SOURCE)
    assert state(cluster, kind) == first
    assert (ours.reads(target, queue=SOURCE), ours.reads(target, queue=MAIN)) == (True, False)
    there(ours, target, original, cluster)
    assert read(cluster, kind) == reads
    assert (ours.reads(target, queue=SOURCE), ours.reads(target, queue=MAIN)) == (False, True)
    assert [container["image"] for container in cluster.workload(kind)["spec"]["template"]["spec"]["containers"]] == [
        container["image"] for container in pod["containers"]
    ]
    back(ours, target, original, cluster)
    assert state(cluster, kind) == first


@pytest.mark.parametrize("place", ["all of a ConfigMap", "a file"])
@one_of(4)
def test_whatever_call_fails_it_gets_there_and_back(server: Server, place: str, every: int) -> None:
    pod, told, reads = PLACES[place]

    def scenario(interruptions: Interruptions) -> None:
        cluster = made(server)
        cluster.deploy(pod)
        cluster.put(KEDA, "scaledobjects", SCALED)
        first, triggers, target = state(cluster), scaled(cluster), target_of(cluster, **told)
        original = consumers(cluster.role).read_original(target, queue=SOURCE)
        ours = consumers(interruptions.watch_api(cluster.role))
        there(ours, target, original, cluster)
        assert read(cluster) == reads
        assert scaled(cluster)[1] == {"queueURL": URL + MAIN, "queueLength": "5"}
        back(ours, target, original, cluster)
        assert (state(cluster), scaled(cluster)) == (first, triggers)

    each_interruption(scenario, every=every)


@pytest.mark.parametrize("place", ["all of a ConfigMap", "a file"])
@one_of(4)
def test_whatever_call_fails_on_the_way_it_can_be_turned_back(server: Server, place: str, every: int) -> None:
    pod, told, _ = PLACES[place]

    def scenario(interruptions: Interruptions) -> None:
        cluster = made(server)
        cluster.deploy(pod)
        first, target = state(cluster), target_of(cluster, **told)
        original = consumers(cluster.role).read_original(target, queue=SOURCE)
        broken = consumers(interruptions.watch_api(cluster.role))
        with suppress(CallFailed):  # the one that is made to fail
            for _ in range(2):
                broken.point(target, original, queue=MAIN, instead_of=(SOURCE,))
        back(consumers(cluster.role), target, original, cluster)
        assert state(cluster) == first

    each_interruption(scenario, every=every)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["a literal", "a file"])
def test_it_is_there_when_the_last_pod_that_was_there_before_is_gone(cluster: Cluster, place: str, kind: str) -> None:
    pod, told, _ = PLACES[place]
    cluster.deploy(pod, kind=kind)
    target, ours = target_of(cluster, kind=kind, **told), consumers(cluster.role)
    original, said = ours.read_original(target, queue=SOURCE), list[bool]()

    def nothing() -> None: ...

    steps: list[Callable[[], None]] = [
        nothing,  # it is changed
        nothing,  # its controller hasn't looked
        lambda: cluster.begin(kind),  # old and new pods serve
        lambda: cluster.retire(kind),  # old pods terminate, and aren't counted
        lambda: cluster.reap(kind),
    ]
    for step in steps:
        step()
        said.append(ours.point(target, original, queue=MAIN, instead_of=(SOURCE,)))
    assert said == [False, False, False, False, True]


def test_a_pod_that_has_ended_is_not_waited_for(cluster: Cluster) -> None:
    cluster.deploy(LITERAL)
    target, ours = target_of(cluster, env="QUEUE"), consumers(cluster.role)
    original = ours.read_original(target, queue=SOURCE)
    evicted = cluster.pods()[0]
    path = api_path("v1", cluster.namespace, "pods", evicted["metadata"]["name"])
    there(ours, target, original, cluster)
    del evicted["metadata"]["resourceVersion"], evicted["metadata"]["uid"]
    cluster.put("v1", "pods", evicted)
    assert not ours.point(target, original, queue=MAIN, instead_of=(SOURCE,))
    cluster.admin.replace_object(f"{path}/status", {**cluster.admin.get_object(path), "status": {"phase": "Failed"}})
    assert ours.point(target, original, queue=MAIN, instead_of=(SOURCE,))


def test_pods_are_known_by_every_kind_of_selector(cluster: Cluster) -> None:
    expressions = [
        {"key": "app", "operator": "In", "values": ["orders", "more"]},
        {"key": "app", "operator": "NotIn", "values": ["other"]},
        {"key": "app", "operator": "Exists"},
        {"key": "debug", "operator": "DoesNotExist"},
    ]
    selector = {"matchLabels": {"app": "orders"}, "matchExpressions": expressions}
    cluster.deploy(LITERAL, spec={"selector": selector})
    target, ours = target_of(cluster, env="QUEUE"), consumers(cluster.role)
    original = ours.read_original(target, queue=SOURCE)
    assert not ours.point(target, original, queue=MAIN, instead_of=(SOURCE,))
    cluster.begin()
    cluster.retire()
    assert not ours.point(target, original, queue=MAIN, instead_of=(SOURCE,))
    cluster.reap()
    assert ours.point(target, original, queue=MAIN, instead_of=(SOURCE,))


def test_what_its_owner_changes_meanwhile_stays(cluster: Cluster) -> None:
    cluster.deploy(FROM_ALL)
    target, ours = target_of(cluster, env="SHOP_QUEUE"), consumers(cluster.role)
    original = ours.read_original(target, queue=SOURCE)
    there(ours, target, original, cluster)

    def deploy(workload: Json) -> None:
        workload["spec"]["template"]["spec"]["containers"][0]["image"] = "app:2"
        workload["spec"]["replicas"] = 3

    cluster.change("Deployment", deploy)
    back(ours, target, original, cluster)
    spec = cluster.workload()["spec"]
    assert (spec["template"]["spec"]["containers"][0]["image"], spec["replicas"]) == ("app:2", 3)
    assert read(cluster) == {"SHOP_QUEUE": URL + SOURCE, "SHOP_PRICE": "$1"}
    assert "env" not in spec["template"]["spec"]["containers"][0]


def test_a_copy_that_somebody_has_deleted_is_not_needed_for_the_way_back(cluster: Cluster) -> None:
    cluster.deploy(MOUNTED)
    first, target, ours = state(cluster), target_of(cluster, **FILE), consumers(cluster.role)
    original = ours.read_original(target, queue=SOURCE)
    there(ours, target, original, cluster)
    (copy,) = (each for each in cluster.config_maps() if each.startswith("sluice-tmp-"))
    cluster.admin.delete_object(api_path("v1", cluster.namespace, "configmaps", copy))
    back(ours, target, original, cluster)
    assert state(cluster) == first


def test_a_config_map_that_is_gone_since_is_a_reason_not_to_go_on(cluster: Cluster) -> None:
    cluster.deploy(MOUNTED)
    target, ours = target_of(cluster, **FILE), consumers(cluster.role)
    original = ours.read_original(target, queue=SOURCE)
    cluster.admin.delete_object(api_path("v1", cluster.namespace, "configmaps", "files"))
    with pytest.raises(BadConsumer, match="there is no ConfigMap files"):
        ours.point(target, original, queue=MAIN, instead_of=(SOURCE,))


def test_a_volume_that_its_owner_has_removed_leaves_no_copy_behind(cluster: Cluster) -> None:
    cluster.deploy(MOUNTED)
    target, ours = target_of(cluster, **FILE), consumers(cluster.role)
    original = ours.read_original(target, queue=SOURCE)
    there(ours, target, original, cluster)
    cluster.change("Deployment", lambda found: found["spec"]["template"].update(spec=BARE))
    cluster.roll()
    with pytest.raises(BadConsumer, match="there is no such volume"):
        ours.point(target, original, queue=SOURCE, instead_of=(MAIN,))
    assert cluster.config_maps() == ["files", "settings"]


def test_what_its_owner_let_read_a_third_queue_stays_and_is_told(cluster: Cluster) -> None:
    cluster.deploy(LITERAL)
    target, ours = target_of(cluster, env="QUEUE"), consumers(cluster.role)
    original = ours.read_original(target, queue=SOURCE)
    there(ours, target, original, cluster)

    def deploy(workload: Json) -> None:
        workload["spec"]["template"]["spec"]["containers"][0]["env"][1]["value"] = URL + "third"

    cluster.change("Deployment", deploy)
    cluster.roll()
    with pytest.raises(BadConsumer, match=r"QUEUE of container app .*: doesn't name sluice-tmp-abcdef"):
        ours.point(target, original, queue=SOURCE, instead_of=(MAIN,))
    assert read(cluster)["QUEUE"] == URL + "third"


def test_who_changes_it_at_the_same_time_fails_the_call_and_the_next_one_goes_on(cluster: Cluster) -> None:
    cluster.deploy(LITERAL)
    target = target_of(cluster, env="QUEUE")
    original = consumers(cluster.role).read_original(target, queue=SOURCE)
    others = iter([lambda: cluster.change("Deployment", lambda found: found["spec"].update(replicas=1))])

    def send(method: str, path: str, body: Json | None) -> tuple[int, Json]:
        if method == "PUT":
            for change in others:
                change()
        return cluster.role.send(method, path, body)

    ours = consumers(Api(send))
    with pytest.raises(CallFailed, match="the object has been modified") as raised:
        ours.point(target, original, queue=MAIN, instead_of=(SOURCE,))
    assert raised.value.code == "Conflict"
    there(ours, target, original, cluster)
    assert (read(cluster)["QUEUE"], cluster.workload()["spec"]["replicas"]) == (URL + MAIN, 1)


@pytest.mark.parametrize("first", [SOURCE, RETURNS])
@pytest.mark.parametrize("place", ["a literal", "a key", "a file"])
def test_two_queues_in_one_place_are_split_at_once_and_end_in_any_order(
    cluster: Cluster, place: str, first: str
) -> None:
    text = '{"a": "orders", "b": "returns"}'
    cluster.config_map("both", text=text)
    pods: dict[str, Json] = {
        "a literal": {"containers": [{"name": "app", "image": "app:1", "env": [{"name": "BOTH", "value": text}]}]},
        "a key": {
            "containers": [
                {
                    "name": "app",
                    "image": "app:1",
                    "env": [{"name": "BOTH", "valueFrom": {"configMapKeyRef": {"name": "both", "key": "text"}}}],
                }
            ]
        },
        "a file": {**MOUNTED, "volumes": [{"name": "config", "configMap": {"name": "both"}}]},
    }
    cluster.deploy(pods[place])
    before, ours = state(cluster), consumers(cluster.role)
    where = {"volume": "config", "file": "text"} if place == "a file" else {"env": "BOTH"}
    a, b = (target_of(cluster, **where, place=Place(path=(key,))) for key in ("a", "b"))
    of_a = ours.read_original(a, queue=SOURCE)
    there(ours, a, of_a, cluster)
    of_b = ours.read_original(b, queue=RETURNS)
    there(ours, b, of_b, cluster, queues=(MAIN_OF_RETURNS, RETURNS))
    (both,) = read(cluster).values()
    assert both == f'{{"a": "{MAIN}", "b": "{MAIN_OF_RETURNS}"}}'
    ends = [(a, of_a, (SOURCE, MAIN)), (b, of_b, (RETURNS, MAIN_OF_RETURNS))]
    for target, original, queues in ends if first == SOURCE else reversed(ends):
        there(ours, target, original, cluster, queues=queues)
    assert state(cluster) == before


def test_a_kubeconfig_leads_there_by_the_official_client(server: Server, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(server.authority)
    there_is: Json = {"server": server.url, **({"certificate-authority": "ca.pem"} if server.authority else {})}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": there_is}],
        "users": [{"name": "u", "user": {"token": server.role_token}}],
        "contexts": [{"name": "theirs", "context": {"cluster": "c", "user": "u"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    cluster.deploy(MOUNTED)
    first, target = state(cluster), target_of(cluster, **FILE)
    ours = consumers(connect_by_kubeconfig("theirs", file=str(tmp_path / "config")))
    original = ours.read_original(target, queue=SOURCE)
    there(ours, target, original, cluster)
    back(ours, target, original, cluster)
    assert state(cluster) == first
    with pytest.raises(BadConsumer, match="there is no such Deployment"):
        ours.read_original(target_of(cluster, **{**FILE, "name": "other"}), queue=SOURCE)
