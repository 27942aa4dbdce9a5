"""What a splitter knows of the registry: announced before it routes by it, and never older than a second."""

import pytest
from msgspec.structs import replace

from sluice.errors import CallFailed
from sluice.splitting.filters.values import Filter, Mode, QueueFilter
from sluice.splitting.sessions.state import (
    SPLITTER_LEASE_S,
    Phase,
    QueueState,
    Registry,
    Session,
    Split,
    Status,
    TemporaryQueue,
)
from sluice.splitting.splitter import BATCH_MS, CACHED_MS, CachedRegistry, RegistryUnsettled
from tests.fakes import Clock
from tests.splitting_fakes import FakeRegistryStore


def seen_and_store() -> tuple[CachedRegistry, FakeRegistryStore, Clock]:
    clock, store = Clock(), FakeRegistryStore(Registry(version=1))
    return CachedRegistry(store, splitter_id="s", decide=lambda: lambda _, __: None, now_ms=clock), store, clock


def routed_version(seen: CachedRegistry) -> int:
    """The version of the registry by which a batch that begins now is routed."""
    seen.load_routes("q")
    return seen._registry.version


def change(store: FakeRegistryStore) -> None:
    store.registry = replace(store.registry, version=store.registry.version + 1)


def test_a_version_is_announced_before_it_is_routed_by() -> None:
    seen, store, clock = seen_and_store()
    assert routed_version(seen) == 1
    assert store.registry.splitters["s"].version == 1
    assert store.registry.splitters["s"].at_ms == clock()


def test_a_change_is_seen_within_a_second_and_announced() -> None:
    seen, store, clock = seen_and_store()
    seen.load_routes("q")
    change(store)
    clock.ms += CACHED_MS
    assert routed_version(seen) == 2
    assert store.registry.splitters["s"].version == 2


def test_within_a_second_nothing_is_read() -> None:
    seen, store, clock = seen_and_store()
    seen.load_routes("q")
    loads = store.loads
    change(store)
    clock.ms += CACHED_MS - 1
    assert routed_version(seen) == 1
    assert store.loads == loads


def test_a_change_between_reading_and_announcing_is_not_missed() -> None:
    seen, store, _ = seen_and_store()
    announce = store.announce_version

    def announce_late(splitter_id: str, *, version: int, at_ms: int) -> None:
        if version == 1:
            change(store)
        announce(splitter_id, version=version, at_ms=at_ms)

    store.announce_version = announce_late  # type: ignore[method-assign]
    assert routed_version(seen) == 2


def test_no_batch_outlives_its_announcement() -> None:
    seen, store, clock = seen_and_store()
    for _ in range(200):
        seen.load_routes("q")
        assert clock() + BATCH_MS <= store.registry.splitters["s"].at_ms + SPLITTER_LEASE_S * 1_000
        clock.ms += 700


def test_a_quiet_registry_is_loaded_once_and_announced_now_and_then() -> None:
    seen, store, clock = seen_and_store()
    for _ in range(30):
        seen.load_routes("q")
        clock.ms += 1_000
    assert store.loads == 1


def test_an_announcement_that_fails_is_made_again_before_anything_is_routed() -> None:
    seen, store, clock = seen_and_store()
    seen.load_routes("q")
    change(store)
    clock.ms += CACHED_MS
    announce, store.announce_version = store.announce_version, refuse  # type: ignore[method-assign]
    with pytest.raises(CallFailed):
        seen.load_routes("q")
    store.announce_version = announce  # type: ignore[method-assign]
    assert routed_version(seen) == 2
    assert store.registry.splitters["s"].version == 2


def refuse(splitter_id: str, *, version: int, at_ms: int) -> None:
    raise CallFailed("PutItem", "ProvisionedThroughputExceededException", "by script")


def test_a_registry_that_changes_with_every_look_brings_the_batch_again() -> None:
    seen, store, _ = seen_and_store()
    version = store.read_version

    def changing() -> int:
        change(store)
        return version()

    store.read_version = changing  # type: ignore[method-assign]
    with pytest.raises(RegistryUnsettled):
        seen.load_routes("q")


def test_only_sessions_whose_queues_are_there_are_routed_to() -> None:
    statuses = dict(zip("abcdef", Status, strict=True))
    filters = {"q": QueueFilter(filter=Filter(attributes=(("client", "a"),)), mode=Mode.MIRROR)}
    sessions = {
        name: Session(
            session_id=name,
            key=name,
            owner="me",
            started_at_ms=0,
            filters=filters,
            heartbeat_at_ms=0,
            status=status,
        )
        for name, status in statuses.items()
    }
    queues = {
        f"tmp-{name}": TemporaryQueue(name=f"tmp-{name}", queue_id="q", session_id=name, state=QueueState.CREATED)
        for name in sessions
    }
    seen, store, _ = seen_and_store()
    store.registry = Registry(version=1, sessions=sessions, queues=queues)
    routed = {name for name, status in statuses.items() if status in {Status.RESOURCES_READY, Status.READY}}
    assert seen.load_routes("q").queues == {name: f"tmp-{name}" for name in routed}
    assert seen.load_routes("another").queues == {}


@pytest.mark.parametrize(
    ("split", "configured", "main"),
    [
        (None, "m", "m"),
        (None, None, None),
        (Split(queue_id="q", source="s", static=True, main="before"), "m", "m"),
        (Split(queue_id="q", source="s", static=False, consumer_at="s"), None, None),
        (Split(queue_id="q", source="s", static=False, consumer_at="s"), "m", "m"),
        (
            Split(queue_id="q", source="s", static=False, main="t", consumer_at="s", phase=Phase.ACTIVE),
            None,
            None,
        ),
        (Split(queue_id="q", source="s", static=False, main="t", consumer_at="t", phase=Phase.ACTIVE), None, "t"),
        (Split(queue_id="q", source="s", static=False, main="t", consumer_at="t", phase=Phase.ACTIVE), "m", "t"),
        (
            Split(queue_id="q", source="s", static=False, main="t", consumer_at="t", phase=Phase.DRAINING),
            "m",
            None,
        ),
    ],
)
def test_messages_go_to_the_queue_that_the_consumer_reads(
    split: Split | None, configured: str | None, main: str | None
) -> None:
    seen, store, _ = seen_and_store()
    store.registry = replace(store.registry, splits={"q": split} if split else {})
    seen.load_routes("q")
    assert seen.find_main_queue("q", configured=configured) == main


def test_routes_are_compiled_once_per_version() -> None:
    seen, store, clock = seen_and_store()
    first = seen.load_routes("q")
    clock.ms += CACHED_MS
    assert seen.load_routes("q") is first
    change(store)
    clock.ms += CACHED_MS
    assert seen.load_routes("q") is not first
