"""What splitting has stored, item by item, as files: this program reads it, and writes the same.

A test that fails here says that a stored format has changed. Then its version goes up, the file of the old version
stays, with a test that it is still read.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sluice.aws.splitting.registry_store import DynamoRegistryStore
from sluice.errors import BadSnapshot
from sluice.splitting.consumers.targets import (
    Consumer,
    Consumers,
    EcsVariable,
    KubernetesWorkload,
    LambdaTrigger,
    LambdaVariable,
    Place,
    SystemsManagerParameter,
)
from sluice.splitting.filters.values import Filter, Mode, QueueFilter
from sluice.splitting.sessions.state import (
    Phase,
    QueueState,
    Registry,
    Session,
    Split,
    SplitterAnnouncement,
    Status,
    TemporaryQueue,
)
from tests.tables import table_in_memory

STORED = Path(__file__).parents[2] / "stored" / "splitting"
SPLIT = Split(
    queue_id="orders",
    source="orders-source",
    static=True,
    main="orders-main",
    consumer_at="orders-main",
    drain_timeout_s=60,
    phase=Phase.ACTIVE,
    phase_since_ms=1_700_000_000_000,
    quiet_since_ms=1_700_000_001_000,
    released_at_version=6,
    is_drain_over=True,
    not_moved="AccessDenied",
    lingers_until_ms=1_700_000_004_000,
)
SESSION = Session(
    session_id="0a1b2c3d4e5f",
    key="alice",
    owner="alice@laptop",
    started_at_ms=1_700_000_000_000,
    filters={
        "orders": QueueFilter(
            filter=Filter(attributes=(("user", "^älice$"), ("level", "^(info|debug)$")), jq=".Body == true"),
            mode=Mode.MIRROR,
        )
    },
    heartbeat_at_ms=1_700_000_002_000,
    time_limit_s=3_600,
    status=Status.CLOSING,
    reason="Stopped",
    changed_at_version=7,
    changed_at_ms=1_700_000_003_000,
    ended_at_ms=1_700_000_003_000,
    name="my branch",
    linger_s=300,
)
OF_LINES = replace(
    SESSION,
    session_id="1a2b3c4d5e6f",
    filters={
        "orders": QueueFilter(filter=Filter(all_of=("^tenant: blue$",), any_of=("^a: x", "y"))),
    },
)
QUEUE = TemporaryQueue(
    name="sluice-tmp-abcdef000001-orders",
    queue_id="orders",
    session_id="0a1b2c3d4e5f",
    mirror=True,
    state=QueueState.EMPTIED,
    condemned=True,
    quiet_since_ms=1_700_000_004_000,
    returned=3,
)
CONSUMERS = Consumers(
    queue_id="orders",
    consumers=(
        Consumer(target=LambdaTrigger(function="orders:live"), original="{}", at="orders-source"),
        Consumer(
            target=LambdaVariable(function="orders", variable="QUEUE"),
            original="orders-source",
            to="sluice-tmp-abcdef-main",
        ),
        Consumer(target=SystemsManagerParameter(name="/orders/queue", refresh_s=30)),
        Consumer(
            target=EcsVariable(
                cluster="c", service="s", container="k", variable="V", place=Place(path=("a", "[]"), pattern="q=(.*)")
            )
        ),
        Consumer(
            target=KubernetesWorkload(
                cluster="c", namespace="n", kind="Rollout", name="o", containers=("k",), env="V", fallback="q"
            )
        ),
    ),
    splitter_on=True,
    held_by="0a1b2c3d4e5f",
    held_until_ms=1_700_000_100_000,
)
HEARTBEAT_MS = 1_700_000_004_000
ANNOUNCED_MS = 1_700_000_005_000
REGISTRY = Registry(
    version=7,
    splits={"orders": SPLIT},
    sessions={SESSION.session_id: SESSION, OF_LINES.session_id: OF_LINES},
    queues={QUEUE.name: QUEUE},
    consumers={"orders": CONSUMERS},
)


def items() -> dict[str, dict[str, Any]]:
    """The stored items by the name of their file."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(STORED.glob("*.json"))}


@pytest.fixture
def store() -> Iterator[DynamoRegistryStore]:
    with table_in_memory() as client:
        yield DynamoRegistryStore(client, "t")


def put(store: DynamoRegistryStore, *stored: dict[str, Any]) -> None:
    for item in stored:
        store.client.put_item(TableName="t", Item=item)


def test_what_is_stored_is_read(store: DynamoRegistryStore) -> None:
    put(store, *items().values())
    registry, revision = store.load()
    heard = replace(SESSION, heartbeat_at_ms=HEARTBEAT_MS)
    assert registry == replace(
        REGISTRY,
        sessions={SESSION.session_id: heard, OF_LINES.session_id: OF_LINES},
        splitters={"01HF00000000000000000000": SplitterAnnouncement(7, ANNOUNCED_MS)},
    )
    assert (revision, store.read_version()) == (12, 7)
    assert store.read_session(SESSION.session_id) == SESSION
    assert store.read_counts() == {SESSION.session_id: 42}
    assert store.find_ended_reason("f5e4d3c2b1a0") == "Unused"
    assert not store.claim_tick(due_at_ms=1_700_000_007_000, now_ms=1_700_000_006_000)


def test_what_is_written_is_what_is_stored(store: DynamoRegistryStore) -> None:
    put(store, {"pk": {"S": "registry"}, "sk": {"S": "head"}, "version": {"N": "6"}, "revision": {"N": "11"}})
    assert store.save(Registry(version=6), REGISTRY, revision=11)
    store.announce_version("01HF00000000000000000000", version=7, at_ms=ANNOUNCED_MS)
    store.record_heartbeat(SESSION.session_id, at_ms=HEARTBEAT_MS)
    store.add_count(SESSION.session_id, 42, at_ms=HEARTBEAT_MS)
    store.record_end("f5e4d3c2b1a0", "Unused", at_ms=HEARTBEAT_MS)
    assert store.claim_tick(due_at_ms=1_700_000_007_000, now_ms=1_700_000_006_000)
    written = {(item["pk"]["S"], item["sk"]["S"]): item for item in store.client.scan(TableName="t")["Items"]}
    assert written == {(item["pk"]["S"], item["sk"]["S"]): item for item in items().values()}


@pytest.mark.parametrize("name", ["split", "session", "temporary_queue"])
def test_a_newer_version_stops_this_program(store: DynamoRegistryStore, name: str) -> None:
    stored = items()
    newer = stored[name]["value"]["S"].replace('"version":1', '"version":2')
    put(store, stored["head"], {**stored[name], "value": {"S": newer}})
    with pytest.raises(BadSnapshot, match=f"{name.replace('_', ' ')} of version 2: this program reads"):
        store.load()
