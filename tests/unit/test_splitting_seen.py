"""What a splitter knows of the registry: announced before it routes by it, and never older than a second."""

from dataclasses import replace

from sluice.splitting.lifecycle import SPLITTER_LEASE_S, Registry
from sluice.splitting.seen import BATCH_MS, CACHED_MS, SeenRegistry
from tests.fakes import Clock
from tests.splitting_fakes import FakeRegistryStore


def seen_and_store() -> tuple[SeenRegistry, FakeRegistryStore, Clock]:
    clock, store = Clock(), FakeRegistryStore(Registry(version=1))
    return SeenRegistry(store, splitter_id="s", decide=lambda: lambda _, __: None, now_ms=clock), store, clock


def change(store: FakeRegistryStore) -> None:
    store.registry = replace(store.registry, version=store.registry.version + 1)


def test_a_version_is_announced_before_it_is_routed_by() -> None:
    seen, store, clock = seen_and_store()
    assert seen.routes("q").router.version == 1
    assert store.registry.splitters["s"].version == 1
    assert store.registry.splitters["s"].at_ms == clock()


def test_a_change_is_seen_within_a_second_and_announced() -> None:
    seen, store, clock = seen_and_store()
    seen.routes("q")
    change(store)
    clock.ms += CACHED_MS
    assert seen.routes("q").router.version == 2
    assert store.registry.splitters["s"].version == 2


def test_within_a_second_nothing_is_read() -> None:
    seen, store, clock = seen_and_store()
    seen.routes("q")
    loads = store.loads
    change(store)
    clock.ms += CACHED_MS - 1
    assert seen.routes("q").router.version == 1
    assert store.loads == loads


def test_a_change_between_reading_and_announcing_is_not_missed() -> None:
    seen, store, _ = seen_and_store()
    announce = store.announce

    def announce_late(splitter_id: str, *, version: int, at_ms: int) -> None:
        if version == 1:
            change(store)
        announce(splitter_id, version=version, at_ms=at_ms)

    store.announce = announce_late  # type: ignore[method-assign]
    assert seen.routes("q").router.version == 2


def test_no_batch_outlives_its_announcement() -> None:
    seen, store, clock = seen_and_store()
    for _ in range(200):
        seen.routes("q")
        assert clock() + BATCH_MS <= store.registry.splitters["s"].at_ms + SPLITTER_LEASE_S * 1_000
        clock.ms += 700


def test_a_quiet_registry_is_loaded_once_and_announced_now_and_then() -> None:
    seen, store, clock = seen_and_store()
    for _ in range(30):
        seen.routes("q")
        clock.ms += 1_000
    assert store.loads == 1
