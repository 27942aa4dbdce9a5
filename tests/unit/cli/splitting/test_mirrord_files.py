"""mirrord's files as they are: one for each form that its documentation shows. Each runs, or is refused by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.cli.splitting.filters import read_filters
from sluice.cli.splitting.registration import build_section
from sluice.cli.splitting.resources import BadResource, import_queues
from sluice.errors import BadFilter
from sluice.operator.documents import read_documents
from sluice.splitting.filters.values import Filter, Mode, QueueFilter
from tests import mirrord

FILES = Path(mirrord.__file__).with_name("files")
RESOURCES = Path(mirrord.__file__).with_name("resources")


def attributes(**patterns: str) -> Filter:
    return Filter(attributes=tuple(patterns.items()))


ZOES = ".*mirrord-session=zoe.*"
URGENT = ".Body | fromjson | .urgent == true"
SESSION = r'[.. | select(type == "string" and contains("mirrord-session=zoe.b"))] | length > 0'
RUNS: Mapping[str, Mapping[str, Filter]] = {
    "one-pattern.json": {"orders": Filter(all_of=("^tenant: green-.*$",))},
    "any-of.json": {"orders": Filter(any_of=(f"^baggage: {ZOES}$", f"^tracestate: {ZOES}$"))},
    "all-of-of-two-brokers.json": {"orders": Filter(all_of=("^tenant: green$", "^region: eu-.*$"))},
    "attributes-body-and-nothing.json": {
        "orders": attributes(baggage=ZOES),
        "invoices": Filter(jq=URGENT),
        "news": Filter(),
    },
    "programs.json": {
        "orders": Filter(jq='.Body | fromjson | .customer == "zoe"'),
        "orders-in-order": Filter(jq='.MessageAttributes.customer.StringValue | test("^zoe$")'),
        "mails": Filter(jq=r'.Body | fromjson | .address | test("example\\.org")'),
    },
    "object-metadata.json": {"uploads": Filter(jq='.S3Metadata.customer == "zoe"')},
    "attributes-and-body.json": {"orders": Filter(attributes=(("customer", "^zoe$"),), jq=URGENT)},
    "every-queue.json": {"*": attributes(baggage=".*mirrord-session=pr-77.*")},
    "several-brokers.json": {"orders": attributes(customer="zoe", colour="^dark"), "invoices": attributes(who="me$")},
    "one-id-on-two-brokers.json": {"orders": attributes(region="^eu")},
    "mirror.json": {"orders": Filter(all_of=("^tenant: green$",))},
    "any-key.json": {"*": Filter(jq=f"(.MessageAttributes // {{}}) | {SESSION}")},
    "key-from-branch.json": {"orders": Filter(all_of=(r"^baggage: .*mirrord-session=Fix/a\.b.*$",))},
    "key-with-default.yaml": {"orders": attributes(baggage=".*mirrord-session=shared.*")},
    "environment.json": {"orders": attributes(tenant="^(green|blue)$", user="^zo\\.e$", path=r"^/a\.b/")},
    "environment.toml": {
        "orders": attributes(tenant="^GREEN$"),
        "invoices": Filter(jq='.Body | fromjson | .user == "zo.e"'),
    },
    "branch-as-label.yaml": {"orders-Fix-a.b": Filter(all_of=(r"^branch: fix\-a\-b$",))},
}
MIRRORED = {"mirror.json", "environment.toml"}
KEYS = {"any-key.json": "zoe.b", "key-from-branch.json": "Fix/a.b", "key-with-default.yaml": "shared"}
TENANT = "feature.split_queues.orders.message_filter.tenant: "
REFUSED = {
    "no-branch.json": TENANT + "{{ branch }} isn't supported; there are get_env(name, default), git_branch, key, user,",
    "no-variable.json": TENANT + "asks for {{ get_env(name='NOWHERE') }}, and no NOWHERE is given",
    "no-key.json": TENANT + "asks for {{ key }}, and no key is given",
    "arithmetic.json": TENANT + "{{ 1 + 2 }} isn't supported",
    "time-of-day.json": TENANT + "{{ now() | date(format='%Y') }} isn't supported",
    "unknown-filter.json": "feature.split_queues.orders.jq_filter: {{ user | sha1 }} isn't supported",
    "condition.json": TENANT + "{% if user %} isn't supported",
    "profile-without-queues.json": "feature.split_queues: is missing",
    "unknown-broker.json": "feature.split_queues.orders.queue_type: unknown queue type 'Pulsar'",
    "protobuf.json": "feature.split_queues.orders.payload_protobuf: unknown field",
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MIRRORD_BRANCH_NAME": "Fix/a.b", "LOGNAME": "zo.e", "SHOP_PATH": "/a.b"}.items():
        monkeypatch.setenv(name, value)
    for name in ("TENANT", "SHOP_KEY", "NOWHERE"):
        monkeypatch.delenv(name, raising=False)


def test_each_file_is_expected_to_run_or_to_be_refused() -> None:
    assert {file.name for file in FILES.iterdir()} == RUNS.keys() | REFUSED.keys()
    assert {file.name for file in RESOURCES.iterdir()} == IMPORTED.keys() | NOT_IMPORTED.keys()


@pytest.mark.parametrize("name", RUNS)
def test_a_file_runs_as_it_is(name: str) -> None:
    notes: list[str] = []
    filters, key = read_filters(FILES / name, [], say=notes.append)
    mode = Mode.MIRROR if name in MIRRORED else Mode.STEAL
    first = next(iter(RUNS[name]))
    assert filters == {
        queue_id: QueueFilter(filter=filter_, mode=mode if queue_id == first else Mode.STEAL)
        for queue_id, filter_ in RUNS[name].items()
    }
    assert key == KEYS.get(name)
    assert not any(note.endswith((": key", ", key")) or ", key," in note for note in notes)


def test_queues_of_other_brokers_are_named() -> None:
    notes: list[str] = []
    read_filters(FILES / "several-brokers.json", [], say=notes.append)
    others = ["buses", "channels", "clicks", "jobs", "rabbits", "streams", "subjects", "tasks", "topics", "views"]
    assert notes[0].endswith(": " + ", ".join(f"feature.split_queues.{queue_id}" for queue_id in others))


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_refused_by_the_name_of_what_isnt_supported(name: str) -> None:
    with pytest.raises(BadFilter) as caught:
        read_filters(FILES / name, [])
    assert str(caught.value).startswith(REFUSED[name])


def test_a_key_of_the_command_line_is_the_key_of_the_file() -> None:
    filters, key = read_filters(FILES / "any-key.json", [], key="al.ice")
    assert key == "al.ice"
    assert "mirrord-session=al.ice" in str(filters["*"].filter.jq)


IMPORTED: Mapping[str, list[dict[str, Any]]] = {
    "two-queues.yaml": [{"queue_id": "orders", "sns": True, "tags": {"tool": "mirrord"}}, {"queue_id": "news"}],
    "two-queues-of-a-split-config.yaml": [
        {"queue_id": "orders", "sns": True, "s3_event": True, "tags": {"tool": "mirrord"}},
        {"queue_id": "news"},
    ],
    "names-in-json-and-by-regex.yaml": [{"queue_id": "orders", "fifo": True}, {"queue_id": "news"}],
    "file-of-a-volume.yaml": [{"queue_id": name, "drain_timeout_s": 60} for name in ("orders", "news")],
    "file-in-a-pod.yaml": [{"queue_id": "orders"}],
    "any-dump.yaml": [{"queue_id": "orders"}, {"queue_id": "invoices"}],
    "options-by-namespace.yaml": [
        {"queue_id": "orders", "tags": {"team": "shop"}},
        {"queue_id": "payments", "tags": {"team": "everyone"}},
    ],
    "forty-queues.yaml": [{"queue_id": f"queue-{number}"} for number in range(40)],
}
NOT_IMPORTED = {
    "one-id-in-two-namespaces.yaml": "orders is the id of a queue in the namespaces shop and bank",
    "no-queue-of-sqs.yaml": "contain no SQS queue",
}
SKIPPED = {
    "ConfigMap settings",
    "Secret kafka",
    "MirrordKafkaTopicsConsumer views",
    "MirrordKafkaClientConfig kafka",
    "MirrordClusterPolicy filters",
    "MirrordWorkloadQueueRegistry rabbits: spec.queues.rabbits: its queues are of type RMQ, not SQS",
    "MirrordSplitConfig shop-split: spec.queues.0: views is of kind kafka, not sqs",
    "MirrordSplitConfig shop-split: spec.queues.1: jobs is of kind bullmq, not sqs",
    "MirrordSplitConfig shop-split: spec.queues.2: tasks is of kind temporal, not sqs",
}


@pytest.mark.parametrize("name", IMPORTED)
def test_resources_are_imported_as_they_are(name: str) -> None:
    queues = import_queues(read_documents(RESOURCES / name)).queues
    assert list(build_section(_add_senders(queues))["splitting"]["queues"]) == [*_add_senders(queues)]
    assert list(queues.values()) == IMPORTED[name]


def _add_senders(queues: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Add what only the operator knows: topics that may send."""
    topic = {"sender_arns": ["arn:aws:sns:eu-central-1:123456789012:topic"]}
    return [queue | topic if "sns" in queue else queue for queue in queues.values()]


@pytest.mark.parametrize("name", NOT_IMPORTED)
def test_resources_are_refused_by_name(name: str) -> None:
    with pytest.raises(BadResource, match=NOT_IMPORTED[name]):
        import_queues(read_documents(RESOURCES / name))


def test_of_any_dump_only_what_isnt_about_sqs_is_skipped_by_name() -> None:
    notes = import_queues(read_documents(RESOURCES / "any-dump.yaml")).notes
    for name in SKIPPED:
        assert any(note.startswith(name) for note in notes), name


def test_resources_of_one_file_may_be_documents_or_a_list() -> None:
    documents = list(yaml.safe_load_all((RESOURCES / "two-queues-of-a-split-config.yaml").read_text()))
    assert import_queues([{"kind": "List", "items": documents}]) == import_queues(documents)
