"""mirrord's resources as the parameters that stand for them, and what is said of the rest."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sluice.cli.program import app
from sluice.cli.splitting.filters import read_filters
from sluice.cli.splitting.registration import build_section
from sluice.cli.splitting.resources import BadResource, ImportedQueues, import_queues
from sluice.operator.documents import BadFile, read_documents
from sluice.splitting.filters.values import Filter, QueueFilter
from tests import mirrord

MEME_APP = mirrord.RESOURCE.read_text()
NEWER = """
---
apiVersion: queues.mirrord.metalbear.co/v1
kind: MirrordSplitConfig
metadata: {name: meme-app-split, namespace: meme}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: meme-app}
  drainTimeout: 0
  ttl: 60
  queues:
    - id: meme-queue
      kind: sqs
      queueConfig: meme-queue-options
      appConfig:
        queue:
          - env: INCOMING_MEME_QUEUE_NAME
            fallback: https://sqs.eu-central-1.amazonaws.com/123456789012/memes.fifo
            containers: [main]
    - id: views
      kind: kafka
      clientConfig: kafka-connection
      appConfig: {topic: [{env: TOPIC}], groupId: [{env: GROUP}]}
---
apiVersion: mirrord.metalbear.co/v1
kind: MirrordPropertyList
metadata: {name: meme-queue-options}
spec:
  properties:
    - {name: sns, value: "true"}
    - {name: s3_event, value: "false"}
    - {name: tags, value: '{"tool":"mirrord"}'}
    - {name: colour, value: blue}
"""
FROM_A_VARIABLE = (
    "meme-queue: Deployment meme-app has the queue's name from variable INCOMING_MEME_QUEUE_NAME: "
    "set it to the main queue's name"
)


def of_yaml(text: str) -> ImportedQueues:
    return import_queues(yaml.safe_load_all(text))


def entry_of(queue: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "MirrordWorkloadQueueRegistry",
        "metadata": {"name": "r"},
        "spec": {"queues": {"q": {"queueType": "SQS", **queue}}, "consumer": {"name": "app"}},
    }


def test_a_workload_with_two_queues_is_two_entries() -> None:
    found = of_yaml(MEME_APP)
    assert mirrord.queues() == [
        {"queue_id": "meme-queue", "tags": {"tool": "mirrord"}},
        {"queue_id": "ad-queue", "tags": {"tool": "mirrord"}},
    ]
    assert found.notes[0] == FROM_A_VARIABLE
    assert len(found.notes) == 4


def test_with_a_cluster_the_workloads_are_consumers_that_are_repointed() -> None:
    found = import_queues(yaml.safe_load_all(MEME_APP), cluster="shop")
    queues = build_section(found.queues.values())["splitting"]["queues"]
    assert queues[0]["consumers"] == [
        {
            "type": "kubernetes",
            "cluster": "shop",
            "namespace": "default",
            "kind": "Deployment",
            "name": "meme-app",
            "containers": ["main"],
            "env": "INCOMING_MEME_QUEUE_NAME",
        }
    ]
    assert "it is re-pointed while the queue is split" in found.notes[0]


def test_each_way_to_find_a_queue_is_a_consumer_of_its_own() -> None:
    sources = [
        {"envLike": "QUEUE_.*", "containers": ["app"], "valueSelector": ".queues.[].url", "valuePattern": "/([^/]+)$"},
        {"volume": {"name": "config", "file": "app.json"}, "valueSelector": ".queue"},
    ]
    spec = {
        "targetRef": {"kind": "StatefulSet", "name": "app"},
        "queues": [{"id": "q", "kind": "sqs", "appConfig": {"queue": sources}}],
    }
    resource = {"kind": "MirrordSplitConfig", "metadata": {"name": "r", "namespace": "n"}, "spec": spec}
    found = import_queues([resource], cluster="shop", by_agent=True)
    build_section(found.queues.values())
    common = {"type": "kubernetes", "cluster": "shop", "namespace": "n", "kind": "StatefulSet", "name": "app"}
    assert found.queues["q"]["consumers"] == [
        common
        | {"containers": ["app"], "env_like": "QUEUE_.*", "agent": True}
        | {"place": {"path": ["queues", "[]", "url"], "pattern": "/([^/]+)$"}},
        common | {"volume": "config", "file": "app.json", "place": {"path": ["queue"]}, "agent": True},
    ]


def test_a_file_that_is_no_config_maps_cant_be_repointed() -> None:
    spec = {
        "targetRef": {"kind": "Deployment", "name": "app"},
        "queues": [{"id": "q", "kind": "sqs", "appConfig": {"queue": [{"podFile": {"path": "/etc/queue"}}]}}],
    }
    with pytest.raises(BadResource, match="file /etc/queue isn't in a ConfigMap's volume"):
        import_queues([{"kind": "MirrordSplitConfig", "metadata": {"name": "r"}, "spec": spec}], cluster="shop")


def test_the_filter_of_the_same_workload_is_a_filter_file() -> None:
    attributes = {"author": "^me$", "level": "^(beginner|intermediate)$"}
    assert read_filters(mirrord.WHOLE, [])[0] == {
        "meme-queue": QueueFilter(filter=Filter(attributes=tuple(attributes.items())))
    }


def test_a_newer_resource_is_read_with_its_property_list() -> None:
    found = of_yaml(NEWER)
    assert list(build_section(found.queues.values())["splitting"]["queues"]) == [
        {
            "queue_id": "meme-queue",
            "fifo": True,
            "sns": True,
            "tags": {"tool": "mirrord"},
            "drain_timeout_s": 0,
            "existing_source_queue_arn": "arn:aws:sqs:eu-central-1:123456789012:memes.fifo",
        }
    ]
    assert found.notes == [
        "MirrordSplitConfig meme-app-split: spec.ttl isn't converted",
        "MirrordPropertyList meme-queue-options: property colour isn't converted",
        FROM_A_VARIABLE,
        "MirrordSplitConfig meme-app-split: spec.queues.1: views is of kind kafka, not sqs",
    ]


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("vpce-0a1b-2c3d.sqs.eu-central-1.vpce.amazonaws.com", "aws:sqs:eu-central-1"),
        ("eu-central-1.queue.amazonaws.com", "aws:sqs:eu-central-1"),
        ("sqs-fips.us-gov-west-1.amazonaws.com", "aws-us-gov:sqs:us-gov-west-1"),
        ("sqs.cn-north-1.amazonaws.com.cn", "aws-cn:sqs:cn-north-1"),
        ("sqs.eusc-de-east-1.amazonaws.eu", "aws-eusc:sqs:eusc-de-east-1"),
    ],
)
def test_an_adopted_queue_is_the_one_that_any_form_of_its_url_names(host: str, place: str) -> None:
    [queue] = of_yaml(NEWER.replace("sqs.eu-central-1.amazonaws.com", host)).queues.values()
    assert queue["existing_source_queue_arn"] == f"arn:{place}:123456789012:memes.fifo"


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ({"nameSource": {"regexPattern": "^QUEUE_"}}, "the variables like ^QUEUE_"),
        ({"nameSource": {"regexPattern": "^QUEUE_"}}, "may be several queues"),
        ({"nameSource": {"envVar": "Q"}, "namesFromJsonMap": True}, "may be several queues"),
        ({"nameSource": {"envVar": "Q"}, "fallbackName": "memes.fifo"}, "except its name memes.fifo"),
        ({"colour": "blue"}, "spec.queues.q.colour isn't converted"),
        ({}, "a place that the resource doesn't name"),
    ],
)
def test_what_a_resource_leaves_open_is_said(queue: dict[str, Any], said: str) -> None:
    assert said in "\n".join(import_queues([entry_of(queue)]).notes)


def test_a_fifo_queue_is_known_by_its_fallback_name() -> None:
    assert import_queues([entry_of({"fallbackName": "memes.fifo", "sns": False, "s3Event": True})]).queues == {
        "q": {"queue_id": "q", "fifo": True, "s3_event": True}
    }


def test_a_list_of_kubectls_is_its_items() -> None:
    other = {"kind": "Deployment", "metadata": {"name": "app"}, "spec": {}}
    found = import_queues([None, {"kind": "List", "items": [entry_of({}), other, entry_of({})]}])
    assert list(found.queues) == ["q"]
    assert "Deployment app: skipped, as it contains no SQS queues" in found.notes


def test_a_property_list_that_isnt_there_is_said() -> None:
    first, _ = [each for each in yaml.safe_load_all(NEWER) if each]
    found = import_queues([first])
    assert "sns, s3_event and tags may be in MirrordPropertyList meme-queue-options" in "\n".join(found.notes)


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({}, "resource 0: "),
        ([], "resource 0: "),
        ({"kind": "MirrordSplitConfig", "spec": {}}, "MirrordSplitConfig without a name: "),
        (
            {"kind": "MirrordSplitConfig", "spec": {"targetRef": {"name": "a"}, "queues": [{"id": 5}]}},
            "spec.queues.0: ",
        ),
        (entry_of({"tags": {"a": 5}}), "spec.queues.q: "),
        ({"kind": "Deployment", "spec": {}}, "the files contain no SQS queue"),
    ],
)
def test_a_fault_is_refused_with_its_place(document: object, place: str) -> None:
    with pytest.raises(BadResource, match=place):
        import_queues([document])


@pytest.mark.parametrize(("name", "value"), [("sns", "yes"), ("sns", None), ("tags", "{"), ("tags", "[]")])
def test_a_fault_of_a_queues_options_is_refused_with_its_place(name: str, value: str | None) -> None:
    config, options = [document for document in yaml.safe_load_all(NEWER) if document]
    options["spec"]["properties"] = [{"name": name} | ({} if value is None else {"value": value})]
    with pytest.raises(BadResource, match=f"property {name}: "):
        import_queues([config, options])


def test_an_id_of_two_queues_is_refused() -> None:
    with pytest.raises(BadResource, match="q is another queue's id already"):
        import_queues([entry_of({}), entry_of({"sns": True})])


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(JUNK, JUNK, st.sampled_from(["MirrordSplitConfig", "MirrordWorkloadQueueRegistry", "MirrordPropertyList"]))
def test_any_document_is_imported_or_refused(one: object, other: object, kind: str) -> None:
    for document in (
        one,
        {"kind": kind, "metadata": one, "spec": other},
        {"kind": kind, "spec": {"queues": one, "consumer": {"name": "c"}, "targetRef": {"name": "t"}}},
        {"kind": kind, "spec": {"queues": [one], "properties": [one], "targetRef": {"name": "t"}}},
        {"kind": kind, "spec": {"queues": {"q": one}, "consumer": {"name": "c"}}},
    ):
        with contextlib.suppress(BadResource):
            import_queues([document])


def test_the_command_prints_the_section_and_notes_the_rest(tmp_path: Path) -> None:
    (tmp_path / "registry.yaml").write_text(MEME_APP)
    (tmp_path / "split.json").write_text(json.dumps(entry_of({})))
    result = CliRunner().invoke(app, ["split", "import", *map(str, sorted(tmp_path.iterdir()))])
    assert result.exit_code == 0, result.output
    assert [queue["queue_id"] for queue in json.loads(result.stdout)["splitting"]["queues"]] == [
        *("meme-queue", "ad-queue", "q"),
    ]
    assert "variable AD_QUEUE_NAME" in result.stderr


def test_the_command_refuses_what_the_stacks_would(tmp_path: Path) -> None:
    (tmp_path / "registry.yaml").write_text(MEME_APP.replace("meme-queue", '"meme:queue"'))
    result = CliRunner().invoke(app, ["split", "import", str(tmp_path / "registry.yaml")])
    assert result.exit_code == 1
    assert "splitting.queues" in result.stderr


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "\ud800", "spec": {}, "metadata": {"name": "\ud800"}},
        entry_of({"\ud800": 1}),
        entry_of({"tags": {"\ud800": ""}}),
    ],
)
def test_half_a_character_is_refused_in_words(tmp_path: Path, document: object) -> None:
    (tmp_path / "split.json").write_text(json.dumps(document))
    result = CliRunner().invoke(app, ["split", "import", str(tmp_path / "split.json")])
    assert result.exit_code == 1
    assert result.stderr


def test_a_file_that_cant_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="missing"):
        read_documents(tmp_path / "missing.yaml")
