"""What the control function reads of the registry, and what it may keep."""

from dataclasses import dataclass

from msgspec.structs import replace

from sluice.splitting.control import RegistryCache
from sluice.splitting.sessions.state import Registry, SplitterAnnouncement
from tests.splitting_fakes import FakeRegistryStore


@dataclass
class CountedStore(FakeRegistryStore):
    """Counts what is read beside whole registries."""

    refreshes: int = 0

    def refresh(self, registry: Registry) -> Registry:
        self.refreshes += 1
        return super().refresh(registry)


def test_an_invocation_reads_once_and_goes_on_from_what_it_wrote() -> None:
    store = CountedStore()
    known = RegistryCache(store)
    for _ in range(3):
        assert known.save(replace(known.load(), splits={}))
    assert (store.loads, store.refreshes) == (1, 1)


def test_the_next_invocation_asks_for_splitters_and_heartbeats_alone() -> None:
    store = CountedStore()
    known = RegistryCache(store)
    known.load()
    store.announce_version("s", version=0, at_ms=5)
    assert known.load().splitters == {}
    known.begin()
    assert known.load().splitters == {"s": SplitterAnnouncement(0, 5)}
    assert store.loads == 1


def test_splitters_are_read_after_a_version_is_written() -> None:
    """One that has announced itself in between may route by the version before."""
    store = CountedStore()
    known = RegistryCache(store)
    before = known.load()
    store.announce_version("s", version=0, at_ms=5)
    assert known.save(replace(before, version=1))
    assert known.load().splitters == {"s": SplitterAnnouncement(0, 5)}


def test_where_somebody_else_has_written_all_is_read_again() -> None:
    store = CountedStore()
    known, other = RegistryCache(store), RegistryCache(store)
    before = known.load()
    assert other.save(replace(other.load(), version=1))
    assert not known.save(replace(before, version=2))
    assert known.load().version == 1
    assert known.save(replace(known.load(), version=2))
    other.begin()
    assert other.load().version == 2
