"""Variables of pods are made to name another queue, and then are what they were, whatever else is in the workload."""

import re
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import BadConsumer
from sluice.splitting.consumers.targets import KubernetesWorkload, Place
from sluice.splitting.consumers.workloads import (
    ANNOTATION,
    MAX_TEXT,
    ORIGINAL,
    Original,
    find_entries,
    have_equal_entries,
    list_config_maps,
    point_workload,
    read_values,
)

Json = dict[str, Any]
PREFIX = "arn:aws:sqs:eu-central-1:123456789012:"
URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/"
SOURCE, MAIN = "orders", "sluice-tmp-abcdef0123456789ab-main-orders"
OLD, NEW = PREFIX + SOURCE, PREFIX + MAIN
MAPS: dict[str, Json | None] = {
    "settings": {"data": {"QUEUE": URL + SOURCE, "PRICE": "$(QUEUE)", "OTHER": "x"}},
    "more": {"data": {"QUEUE": SOURCE, "A": "a"}},
    "empty": {"data": None},
    "none": None,
}


def target(**told: Any) -> KubernetesWorkload:
    return KubernetesWorkload(
        cluster="theirs", namespace="shop", kind="Deployment", name="orders", **(told or {"env": "QUEUE"})
    )


def workload(*containers: Json, init: list[Json] | None = None, **metadata: Any) -> Json:
    pod: Json = {"containers": list(containers), **({"initContainers": init} if init is not None else {})}
    return {"metadata": {"name": "orders", **metadata}, "spec": {"template": {"metadata": {}, "spec": pod}}}


def seen(container: Json) -> dict[str, str]:
    """What a program in the container reads, by Kubernetes' rules one after the other: the slow oracle."""
    found = dict[str, str]()
    for source in container.get("envFrom") or []:
        data = (MAPS.get(source.get("configMapRef", {}).get("name")) or {}).get("data") or {}
        found |= {source.get("prefix", "") + key: value for key, value in data.items()}
    for entry in container.get("env") or []:
        if "valueFrom" not in entry:
            text, expanded, at = entry.get("value", ""), "", 0
            while at < len(text):
                if text.startswith("$$", at):
                    expanded, at = expanded + "$", at + 2
                elif match := re.compile(r"\$\(([^)]*)\)").match(text, at):
                    expanded, at = expanded + found.get(match[1], match[0]), match.end()
                else:
                    expanded, at = expanded + text[at], at + 1
            found[entry["name"]] = expanded
        elif ref := entry["valueFrom"].get("configMapKeyRef"):
            data = (MAPS.get(ref["name"]) or {}).get("data") or {}
            if ref["key"] in data:
                found[entry["name"]] = data[ref["key"]]
    return found


names = st.sampled_from(["QUEUE", "A", "B", "SHOP_QUEUE"])
maps = st.sampled_from(sorted(MAPS))
values = st.sampled_from(
    [URL + SOURCE, SOURCE, OLD, URL + "others", "x", "", "$$(A)", "$(QUEUE)/x", "https://$(A)/" + SOURCE]
)
entries = st.one_of(
    st.builds(lambda name, value: {"name": name, "value": value}, names, values),
    st.builds(
        lambda name, of, key: {
            "name": name,
            "valueFrom": {"configMapKeyRef": {"name": of, "key": key, "optional": True}},
        },
        names,
        maps,
        st.sampled_from(["QUEUE", "OTHER", "A"]),
    ),
)
sources = st.builds(
    lambda prefix, of: {"configMapRef": {"name": of, "optional": True}, **({"prefix": prefix} if prefix else {})},
    st.sampled_from(["", "SHOP_"]),
    maps,
)


@st.composite
def containers(draw: st.DrawFn, name: str) -> Json:
    found: Json = {"name": name, "image": draw(st.sampled_from(["a:1", "b"]))}
    if draw(st.booleans()):
        found["env"] = draw(st.lists(entries, max_size=4))
    if draw(st.booleans()):
        found["envFrom"] = draw(st.lists(sources, max_size=3))
    return found


workloads = st.builds(
    lambda app, side, init, annotations: workload(
        app, side, init=init, **({} if annotations is None else {"annotations": annotations})
    ),
    containers("app"),
    containers("side"),
    st.one_of(st.none(), st.lists(containers("first"), max_size=1)),
    st.sampled_from([None, {}, {"theirs": "x"}]),
)
targets = st.sampled_from(
    [
        target(env="QUEUE"),
        target(env="SHOP_QUEUE"),
        target(env="QUEUE", containers=("app",)),
        target(env_like=".*QUEUE"),
        target(env="QUEUE", containers=("app", "side"), fallback=SOURCE),
    ]
)


def entries_found(found: Json, of: KubernetesWorkload) -> Any:
    assert list_config_maps(found, of) <= MAPS.keys()
    return find_entries(found, of, MAPS, queue=OLD)


@given(workloads, targets)
def test_there_and_back_is_what_it_was_and_only_the_queue_is_another(found: Json, of: KubernetesWorkload) -> None:
    before = deepcopy(found)
    try:
        kept = entries_found(found, of)
    except BadConsumer:
        return
    there = point_workload(found, of, kept, old=(OLD,), new=NEW)
    assert (there.problems, found) == ((), before)
    again = point_workload(there.workload, of, kept, old=(OLD,), new=NEW)
    assert again == there
    pods = [each["spec"]["template"]["spec"] for each in (found, there.workload)]
    for was, now in zip(*([*(pod.get("initContainers") or []), *pod["containers"]] for pod in pods), strict=True):
        ours = {each.variable for each in kept if each.container == was["name"]}
        for variable in ours:
            assert seen(now)[variable] == seen(was).get(variable, SOURCE).replace(SOURCE, MAIN)
        others = [
            [each for each in env if each["name"] not in ours] for env in (was.get("env", []), now.get("env", []))
        ]
        assert others[0] == others[1]
        assert {**was, "env": None} == {**now, "env": None}
    assert not have_equal_entries(pods[0], pods[1], kept)
    back = point_workload(there.workload, of, kept, old=(NEW,), new=OLD)
    assert back.problems == ()
    assert back.workload["spec"] == before["spec"]
    annotations = before["metadata"].get("annotations")
    assert back.workload["metadata"].get("annotations") in ([annotations, None] if not annotations else [annotations])
    assert have_equal_entries(back.workload["spec"]["template"]["spec"], pods[0], kept)


@given(workloads, targets)
def test_what_is_kept_is_read_again(found: Json, of: KubernetesWorkload) -> None:
    try:
        kept = Original(queue=SOURCE, entries=entries_found(found, of))
    except BadConsumer:
        return
    assert ORIGINAL.from_text(ORIGINAL.text(kept)) == kept


def test_what_is_kept_looks_like_this() -> None:
    """A change here is a change of the stored format: then its version goes up."""
    found = workload({"name": "app", "env": [{"name": "QUEUE", "value": "orders"}]})
    kept = Original(queue=SOURCE, entries=entries_found(found, target()))
    assert ORIGINAL.text(kept) == (
        '{"kind":"workload","version":1,"value":{"queue":"orders","entries":[{"container":"app","variable":"QUEUE",'
        '"was":{"name":"QUEUE","value":"orders"},"value":"orders","listed":true}],"config_map":null}}'
    )


REF: Json = {"name": "QUEUE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "QUEUE"}}}


def test_a_reference_becomes_a_literal_in_its_place() -> None:
    found = workload({"name": "app", "env": [{"name": "A"}, REF, {"name": "B", "value": "$(QUEUE)"}]})
    there = point_workload(found, target(), entries_found(found, target()), old=(OLD,), new=NEW).workload
    assert there["spec"]["template"]["spec"]["containers"][0]["env"] == [
        {"name": "A"},
        {"name": "QUEUE", "value": URL + MAIN},
        {"name": "B", "value": "$(QUEUE)"},
    ]
    assert list(there["metadata"]["annotations"]) == [ANNOTATION]


def test_what_a_config_map_gives_for_all_is_overridden_before_whatever_refers_to_it() -> None:
    all_of = {"envFrom": [{"configMapRef": {"name": "settings"}}]}
    found = workload({"name": "app", "env": [{"name": "B", "value": "$(QUEUE)"}], **all_of})
    there = point_workload(found, target(), entries_found(found, target()), old=(OLD,), new=NEW).workload
    assert there["spec"]["template"]["spec"]["containers"][0]["env"] == [
        {"name": "QUEUE", "value": URL + MAIN},
        {"name": "B", "value": "$(QUEUE)"},
    ]


def test_dollars_of_a_config_map_stay_what_they_are() -> None:
    maps: dict[str, Json | None] = {"settings": {"data": {"QUEUE": "price=$(A) q=orders"}}}
    found, of = workload({"name": "app", "env": [REF]}), target(env="QUEUE", place=Place(pattern="q=(.+)"))
    kept = find_entries(found, of, maps, queue=OLD)
    there = point_workload(found, of, kept, old=(OLD,), new=NEW).workload
    assert read_values(there, kept) == {"QUEUE": f"price=$$(A) q={MAIN}"}


def test_a_literal_that_its_owner_has_put_in_place_of_a_reference_stays() -> None:
    found = workload({"name": "app", "env": [REF]})
    kept = entries_found(found, target())
    theirs = workload({"name": "app", "env": [{"name": "QUEUE", "value": SOURCE}]})
    assert point_workload(theirs, target(), kept, old=(NEW,), new=OLD).workload == theirs
    moved = workload({"name": "app", "env": [{"name": "QUEUE", "value": MAIN}]})
    assert point_workload(moved, target(), kept, old=(NEW,), new=OLD).workload == theirs


@pytest.mark.parametrize(
    ("containers", "cause"),
    [
        ([], "there is no such container any more"),
        ([{"name": "app", "env": []}], "isn't set as it was"),
        ([{"name": "app", "env": [{"name": "QUEUE", "valueFrom": {"fieldRef": {}}}]}], "isn't set as it was"),
        ([{"name": "app", "env": [{"name": "QUEUE", "value": "third"}]}], "doesn't name sluice-tmp-abcdef"),
    ],
)
def test_what_is_not_there_any_more_is_a_problem_and_the_rest_is_put_back(containers: list[Json], cause: str) -> None:
    env = [{"name": "QUEUE", "value": SOURCE}]
    kept = entries_found(workload({"name": "app", "env": env}, {"name": "side", "env": env}), target())
    found = workload(*containers, {"name": "side", "env": [{"name": "QUEUE", "value": MAIN}]})
    back = point_workload(found, target(), kept, old=(NEW,), new=OLD)
    assert back.workload["spec"]["template"]["spec"]["containers"][-1]["env"] == env
    (problem,) = back.problems
    assert problem.cause.startswith(cause)


def of_all(*refs: Json) -> Json:
    return {"name": "app", "envFrom": list(refs)}


OF_APP = "variable QUEUE of container app of Deployment theirs/shop/orders"
SECRET, SETTINGS = {"secretRef": {"name": "s"}}, {"configMapRef": {"name": "settings"}}


@pytest.mark.parametrize(
    ("container", "told", "refusal"),
    [
        (
            {"name": "app", "env": [{"name": "QUEUE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            {},
            f"{OF_APP}: is of a Secret, which isn't read",
        ),
        (
            {"name": "app", "env": [{"name": "QUEUE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
            {},
            f"{OF_APP}: is by fieldRef, which isn't read",
        ),
        (
            of_all(SETTINGS, SECRET),
            {},
            f"{OF_APP}: may be of Secret s, which isn't read: give its fallback",
        ),
        (
            {"name": "app", "env": [{"name": "QUEUE", "value": "https://x/$(ACCOUNT)/$(NAME)"}]},
            {},
            f"{OF_APP}: doesn't name orders, but refers to other variables: name one of those",
        ),
        (
            {"name": "app", "env": [{"name": "QUEUE", "value": "x" * (MAX_TEXT + 1)}]},
            {},
            f"{OF_APP}: has 16385 characters, more than 16384",
        ),
        ({"name": "app", "env": [{"name": "QUEUE", "value": SOURCE}] * 2}, {}, f"{OF_APP}: is set more than once"),
        (of_all(), {"env_like": "Q.*"}, "variables like Q.* of Deployment theirs/shop/orders: isn't set"),
        (
            of_all(),
            {"env": "QUEUE", "containers": ("app", "x")},
            "variable QUEUE of containers app, x of Deployment theirs/shop/orders: there is no container x",
        ),
    ],
)
def test_what_cannot_be_read_or_does_not_name_the_queue_is_refused(
    container: Json, told: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(BadConsumer) as raised:
        entries_found(workload(container), target(**told))
    assert str(raised.value) == refusal


@pytest.mark.parametrize(
    ("container", "told"),
    [
        (of_all(SECRET, SETTINGS), {}),  # the last one counts
        (of_all({**SECRET, "prefix": "X_"}, SETTINGS), {}),
        (of_all(SETTINGS, {**SECRET, "prefix": "X_"}), {}),
        (of_all(SETTINGS, SECRET), {"env": "QUEUE", "containers": ("app",), "fallback": SOURCE}),
    ],
)
def test_a_secret_that_does_not_set_the_variable_is_no_obstacle(container: Json, told: dict[str, Any]) -> None:
    (entry,) = entries_found(workload(container), target(**told))
    assert (entry.was, entry.value, entry.listed) == (None, URL + SOURCE, False)


def test_an_annotation_that_is_not_ours_is_refused() -> None:
    found = workload({"name": "app", "env": [REF]}, annotations={ANNOTATION: "["})
    with pytest.raises(BadConsumer, match="annotation sluice-originals of variable QUEUE of Deployment theirs/shop/o"):
        entries_found(found, target())
