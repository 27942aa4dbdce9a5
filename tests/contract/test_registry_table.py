"""The registry keeps its port's promises: the DynamoDB adapter on moto, and the fake beside it."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from sluice.aws.splitting.registry_store import MAX_CHANGES, DynamoRegistryStore, TooManyChanges
from sluice.errors import BadSnapshot
from sluice.splitting.control import RegistryCache
from sluice.splitting.filters.values import Filter, Mode, QueueFilter
from sluice.splitting.sessions.events import HEARTBEAT_LIMIT_S
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
from tests.splitting_fakes import FakeRegistryStore
from tests.tables import table_in_memory
from tests.unit.splitting.test_control import World

FILTERS = {
    "q": QueueFilter(filter=Filter(attributes=(("client", "^ä$"), ("n", "1")), jq=".a == true"), mode=Mode.MIRROR)
}
SESSION = Session(
    session_id="s",
    key="key",
    owner="me",
    started_at_ms=1,
    filters=FILTERS,
    heartbeat_at_ms=5,
    status=Status.CLOSING,
    reason="Stopped",
    ended_at_ms=9,
)
SPLIT = Split(queue_id="q", source="source", static=True, main="main", consumer_at="main", phase=Phase.ACTIVE)
QUEUE = TemporaryQueue(name="tmp", queue_id="q", session_id="s", state=QueueState.EMPTIED, condemned=True, returned=3)
FULL = Registry(version=7, splits={"q": SPLIT}, sessions={"s": SESSION}, queues={"tmp": QUEUE})


@pytest.fixture
def table() -> Iterator[DynamoRegistryStore]:
    with table_in_memory() as client:
        yield DynamoRegistryStore(client, "t")


@pytest.fixture(params=["table", "fake"])
def store(request: pytest.FixtureRequest, table: DynamoRegistryStore) -> DynamoRegistryStore | FakeRegistryStore:
    return table if request.param == "table" else FakeRegistryStore()


def test_what_is_saved_is_loaded(store) -> None:
    empty, revision = store.load()
    assert empty == Registry()
    assert store.save(empty, FULL, revision=revision)
    assert store.load()[0] == FULL
    assert store.read_version() == 7


def test_one_session_is_found_by_its_id(store) -> None:
    assert store.save(Registry(), FULL, revision=store.load()[1])
    assert (store.read_session("s"), store.read_session("other")) == (SESSION, None)


def test_what_is_left_out_is_gone(store) -> None:
    assert store.save(Registry(), FULL, revision=store.load()[1])
    without = replace(FULL, queues={}, version=8)
    assert store.save(FULL, without, revision=store.load()[1])
    assert store.load()[0] == without


def test_only_one_of_two_who_read_the_same_may_write(store) -> None:
    before, revision = store.load()
    assert store.save(before, FULL, revision=revision)
    assert not store.save(before, replace(FULL, version=99), revision=revision)
    assert store.read_version() == 7


def test_announcements_and_heartbeats_are_outside_of_any_revision(store) -> None:
    assert store.save(Registry(), FULL, revision=store.load()[1])
    _, revision = store.load()
    store.announce_version("splitter", version=7, at_ms=123)
    store.record_heartbeat("s", at_ms=456)
    registry, same = store.load()
    assert same == revision
    assert registry.splitters == {"splitter": SplitterAnnouncement(7, 123)}
    assert registry.sessions["s"].heartbeat_at_ms == 456


def test_what_comes_between_reading_and_writing_is_kept(store) -> None:
    """A registry that was read before doesn't take announcements and heartbeats back."""
    assert store.save(Registry(), FULL, revision=store.load()[1])
    before, revision = store.load()
    store.announce_version("splitter", version=7, at_ms=123)
    store.record_heartbeat("s", at_ms=456)
    assert store.save(before, replace(before, version=8), revision=revision)
    registry, _ = store.load()
    assert registry.splitters == {"splitter": SplitterAnnouncement(7, 123)}
    assert registry.sessions["s"].heartbeat_at_ms == 456


def test_a_later_announcement_takes_the_place_of_an_earlier_one(store) -> None:
    for version in (1, 2):
        store.announce_version("splitter", version=version, at_ms=version)
    store.announce_version("other", version=1, at_ms=3)
    assert store.load()[0].splitters == {"splitter": SplitterAnnouncement(2, 2), "other": SplitterAnnouncement(1, 3)}


def test_who_loses_a_race_has_written_nothing(store) -> None:
    before, revision = store.load()
    assert store.save(before, FULL, revision=revision)
    rival = replace(FULL, version=9, queues={"rival": replace(QUEUE, name="rival")})
    assert not store.save(before, rival, revision=revision)
    assert store.load()[0] == FULL


def test_every_write_makes_earlier_reads_too_old(store) -> None:
    """Also one that comes back to what was there."""
    empty, revision = store.load()
    assert store.save(empty, FULL, revision=revision)
    assert store.save(FULL, replace(empty, version=8), revision=store.load()[1])
    assert not store.save(empty, FULL, revision=revision)


def test_nothing_to_write_is_no_race(store) -> None:
    assert store.save(Registry(), FULL, revision=store.load()[1])
    before, revision = store.load()
    assert store.save(before, before, revision=revision)
    assert store.load()[0] == before


def test_one_session_is_read_as_it_was_saved(store) -> None:
    assert store.save(Registry(), FULL, revision=store.load()[1])
    assert (store.read_session("s"), store.read_session("other")) == (SESSION, None)


def test_messages_sent_are_added_up(store) -> None:
    for number in (2, 3):
        store.add_count("s", number, at_ms=0)
    assert store.read_counts() == {"s": 5}


def test_why_a_session_ended_is_remembered(store) -> None:
    store.record_end("s", "Unused", at_ms=0)
    assert (store.find_ended_reason("s"), store.find_ended_reason("other")) == ("Unused", None)


def test_a_tick_is_armed_by_one(store) -> None:
    assert store.claim_tick(due_at_ms=1_000, now_ms=0)
    assert not store.claim_tick(due_at_ms=1_000, now_ms=0)
    assert not store.claim_tick(due_at_ms=9_000, now_ms=500)
    assert store.claim_tick(due_at_ms=600, now_ms=500)  # sooner than the one that is armed
    assert store.claim_tick(due_at_ms=2_000, now_ms=1_000)  # that one is over


def test_more_than_a_page_is_loaded_whole(table: DynamoRegistryStore) -> None:
    registry, wide = (
        Registry(),
        {"q": QueueFilter(filter=Filter(attributes=tuple((f"a{n}", "x" * 3_750) for n in range(8))))},
    )
    for start in range(0, 120, 60):
        sessions = {f"s{n}": replace(SESSION, session_id=f"s{n}", filters=wide) for n in range(start, start + 60)}
        after = replace(registry, sessions={**registry.sessions, **sessions})
        assert table.save(registry, after, revision=table.load()[1])
        registry = after
    assert table.load()[0] == registry


def test_more_than_a_transaction_is_refused_with_the_reason(table: DynamoRegistryStore) -> None:
    queues = {f"q{n}": replace(QUEUE, name=f"q{n}") for n in range(MAX_CHANGES + 1)}
    with pytest.raises(TooManyChanges, match="at most 99"):
        table.save(Registry(), replace(FULL, queues=queues), revision=0)
    assert table.load()[0] == Registry()


def test_more_sessions_end_at_once_than_a_transaction_takes(table: DynamoRegistryStore) -> None:
    """Their owners' network fails, say. A tick that can't be written would be tried in vain for ever."""
    world = World()
    for _ in range(MAX_CHANGES // 2 + 1):
        world.start()
    world.pass_s(2)
    started = world.store.registry
    sessions = replace(started, queues={})
    assert table.save(Registry(), sessions, revision=0)
    assert table.save(sessions, started, revision=1)
    world.registry_cache = RegistryCache(table)
    world.pass_s(HEARTBEAT_LIMIT_S)
    for _ in range(3):
        world.pass_s(1)
    registry, _ = table.load()
    assert (registry.sessions, registry.queues) == ({}, {})


def test_a_registry_of_a_newer_version_is_not_misread(table: DynamoRegistryStore) -> None:
    assert table.save(Registry(), FULL, revision=0)
    table.client.update_item(
        TableName="t",
        Key={"pk": {"S": "registry"}, "sk": {"S": "split#q"}},
        UpdateExpression="SET #value = :value",
        ExpressionAttributeNames={"#value": "value"},
        ExpressionAttributeValues={":value": {"S": '{"kind": "split", "version": 2, "value": {"new": 1}}'}},
    )
    with pytest.raises(BadSnapshot, match="split of version 2: this program reads split of 1"):
        table.load()
