"""A site's exchanges and bindings: changed by whoever wins, each change once, and nothing lost on the way."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import BadBinding, BadSnapshot, CallFailed, TooBusy
from sluice.federation.exchange_store import (
    Change,
    ExchangeStore,
    add_binding,
    add_exchange,
    mark_feeding_queues,
    remove_binding,
    remove_exchange,
    remove_queue_bindings,
    replace_bindings,
)
from sluice.federation.matching.bindings import (
    CACHED_MS,
    CHANGE,
    Binding,
    Bindings,
    BindingsChange,
    BindingsUpdate,
    CachedReplica,
    Destination,
    SiteBindings,
)
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.federation.stored import MAX_RACES, CachedDocument
from tests.federation_fakes import NOTHING, FakeChangeLog, FakeDocument

OWN = Exchange(name="own", type=ExchangeType.TOPIC, alternate="amq.fanout")


def bound(queue: str, key: str = "", exchange: str = "amq.direct", **arguments: object) -> Change:
    binding = Binding(exchange=exchange, queue=queue, key=key, arguments=arguments)  # type: ignore[arg-type]
    return add_binding(binding, Destination(queue=queue, url=f"url/{queue}"))


def keys(store: ExchangeStore) -> set[tuple[str, str, str]]:
    return {binding.id for binding in store.bindings()}


def test_a_site_begins_with_the_standard_exchanges() -> None:
    bindings = ExchangeStore(FakeChangeLog()).bindings()
    assert (bindings.version, bindings.exchanges, list(bindings)) == (0, STANDARD_EXCHANGES, [])


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from(["q", "r"]), st.sampled_from(["a", "b"]), st.integers(0, 3)),
        max_size=20,
    )
)
def test_bindings_are_those_made_and_not_taken_away_whoever_writes_amid_it(
    steps: list[tuple[bool, str, str, int]],
) -> None:
    """The literal oracle is a set."""
    document, expected = FakeChangeLog(), set[tuple[str, str, str]]()
    store = ExchangeStore(document)
    for adds, queue, key, rivals in steps:
        document.rivals = rivals
        id_ = ("amq.direct", queue, key)
        if adds:
            store.change(bound(queue, key))
            expected.add(id_)
        elif id_ in expected:
            store.change(remove_binding(id_))
            expected.remove(id_)
        else:
            with pytest.raises(BadBinding, match="is not bound"):
                store.change(remove_binding(id_))
        assert keys(store) == expected
        assert {each.queue for each in store.bindings().queues} == {queue for _, queue, _ in expected}


def test_the_same_change_again_writes_nothing() -> None:
    document = FakeChangeLog()
    store = ExchangeStore(document)
    for _ in range(2):
        store.change(bound("q", "a"))
        store.change(add_exchange(OWN))
        store.change(mark_feeding_queues({"q"}))
        store.change(remove_queue_bindings("other"))
    # Binding again forgets who feeds on it, and noting that is a change: two of each.
    assert document.written <= 5


def test_versions_go_up_with_every_write() -> None:
    document = FakeChangeLog()
    store = ExchangeStore(document)
    store.change(bound("q", "a"))
    store.change(bound("q", "b"))
    assert (store.bindings().version, document.written) == (2, 2)


def test_who_always_loses_gives_up() -> None:
    document = FakeChangeLog(rivals=MAX_RACES)
    with pytest.raises(TooBusy, match=f"{MAX_RACES} races"):
        ExchangeStore(document).change(bound("q"))


def test_a_rivals_binding_is_kept() -> None:
    document = FakeChangeLog()
    store = ExchangeStore(document)

    def slowly(change: Change, meanwhile: Callable[[], object]) -> Change:
        waiting = [meanwhile]

        def changed(bindings):
            if waiting:
                waiting.pop()()
            return change(bindings)

        return changed

    store.change(slowly(bound("mine"), lambda: store.change(bound("theirs"))))
    assert {queue for _, queue, _ in keys(store)} == {"mine", "theirs"}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (bound("q", exchange="nowhere"), "no such exchange: nowhere"),
        (bound("q", "k" * 257), "257 characters"),
        (bound("q", exchange="amq.match", **{"x-match": "some"}), "x-match"),
        (add_exchange(Exchange(name="amq.direct", type=ExchangeType.TOPIC)), "there is an exchange of this name"),
        (remove_exchange("amq.direct"), "every site has"),
        (remove_exchange("nowhere"), "no such exchange"),
        (remove_exchange("own"), "own has 1 bindings: unbind them first"),
        (bound("q", "a", exchange="own", n=1), "with other arguments"),
        (remove_binding(("own", "q", "b")), "q is not bound to own by 'b'"),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_nothing_is_written(change: Change, error: str) -> None:
    document = FakeChangeLog()
    store = ExchangeStore(document)
    store.change(add_exchange(OWN))
    store.change(bound("q", "a", exchange="own"))
    before = document.content
    with pytest.raises(BadBinding, match=error):
        store.change(change)
    assert document.content == before


def test_an_exchange_that_is_anothers_alternate_stays() -> None:
    store = ExchangeStore(FakeChangeLog())
    store.change(add_exchange(Exchange(name="last", type=ExchangeType.FANOUT)))
    store.change(add_exchange(Exchange(name="first", type=ExchangeType.FANOUT, alternate="last")))
    with pytest.raises(BadBinding):
        store.change(remove_exchange("last"))
    assert "last" in {exchange.name for exchange in store.bindings().exchanges}


def test_what_feeds_a_route_is_noted_and_forgotten() -> None:
    store = ExchangeStore(FakeChangeLog())
    store.change(bound("q"))
    store.change(mark_feeding_queues({"q", "unbound"}))
    assert [queue.feeds_route for queue in store.bindings().queues] == [True]
    store.change(mark_feeding_queues(()))
    assert [queue.feeds_route for queue in store.bindings().queues] == [False]


def test_a_damaged_table_is_not_taken_for_an_empty_one() -> None:
    with pytest.raises(BadSnapshot):
        ExchangeStore(FakeChangeLog(snapshot=b"damaged", base=1)).bindings()


def test_a_document_is_at_most_a_second_old_and_decoded_once_a_version() -> None:
    document, clock, decoded = FakeDocument(), [0], []

    def decode(content: bytes | None) -> bytes:
        decoded.append(content)
        return content or b""

    seen = CachedDocument(document, decode, lambda: clock[0])
    assert (seen.value(), seen.value(), len(decoded)) == (b"", b"", 1)
    assert document.save(b"new", after=0)
    clock[0] = CACHED_MS - 1
    assert (seen.value(), len(decoded)) == (b"", 1)
    clock[0] = CACHED_MS
    assert (seen.value(), len(decoded)) == (b"new", 2)
    clock[0] = 10 * CACHED_MS
    assert (seen.value(), len(decoded)) == (b"new", 2)


def test_bindings_are_at_most_a_second_old_and_compiled_once() -> None:
    log, clock, made = FakeChangeLog(), [0], []

    def make(bindings: Bindings) -> SiteBindings:
        made.append(bindings)
        return SiteBindings(bindings)

    seen = CachedReplica(log, make, lambda: clock[0])
    assert (seen.value().version, len(made)) == (0, 1)
    ExchangeStore(log).change(bound("q"))
    clock[0] = CACHED_MS - 1
    assert (seen.value().version, len(made)) == (0, 1)
    clock[0] = CACHED_MS
    assert (seen.value().version, len(made)) == (1, 1)


def test_bindings_that_cannot_be_read_are_no_reason_to_keep_the_old_ones() -> None:
    log, clock = FakeChangeLog(), [0]
    seen = CachedReplica(log, SiteBindings, lambda: clock[0])
    store = ExchangeStore(log)
    store.change(bound("q"))
    assert seen.value().count == 1
    log.changes[2] = b"damaged"
    for _ in range(2):
        clock[0] += CACHED_MS
        with pytest.raises(BadSnapshot):
            seen.value()
    log.changes[2] = NOTHING
    clock[0] += CACHED_MS
    assert (seen.value().version, seen.value().count) == (2, 1)


def test_a_change_that_does_not_follow_is_an_error_and_what_was_half_changed_is_forgotten() -> None:
    log = FakeChangeLog()
    store = ExchangeStore(log)
    store.change(bound("q"))
    change = BindingsChange(bound={"amq.direct": {"q": {"half": {}}, "nobody": {"k": {}}}})
    log.changes[2] = CHANGE.pack(change)
    with pytest.raises(BadSnapshot, match="change 2 of the bindings: no such queue: nobody"):
        store.bindings()
    del log.changes[2]
    assert keys(store) == {("amq.direct", "q", "")}


class Unreachable(FakeChangeLog):
    """A log that can't be read once."""

    lost = False

    def read_since(self, version: int | None) -> BindingsUpdate:
        if self.lost:
            self.lost = False
            raise CallFailed("GetItem", "Timeout", "")
        return super().read_since(version)


def test_a_read_that_fails_costs_no_second_compilation() -> None:
    log, made = Unreachable(), []

    def make(bindings: Bindings) -> SiteBindings:
        made.append(bindings)
        return SiteBindings(bindings)

    followed = CachedReplica(log, make)
    followed.value()
    log.lost = True
    with pytest.raises(CallFailed):
        followed.value()
    assert (followed.value().version, len(made)) == (0, 1)


def test_a_bulk_change_that_no_item_holds_is_a_snapshot_and_others_follow() -> None:
    log, draw = FakeChangeLog(), random.Random(0)
    store, other = ExchangeStore(log), ExchangeStore(log)
    store.change(bound("q"))
    assert other.bindings().count == 1
    wanted = [Binding(exchange="amq.direct", queue="q", key=f"{draw.getrandbits(800):x}") for _ in range(5_000)]
    store.change(replace_bindings((Destination(queue="q", url="url/q"), wanted)))
    assert (log.base, log.changes) == (2, {})
    assert keys(store) == keys(other) == {each.id for each in wanted}
    other.change(remove_queue_bindings("q"))
    assert (keys(store), log.base) == (set(), 2 if log.changes else 3)


def test_many_changes_are_folded_into_a_snapshot_in_a_quiet_moment() -> None:
    log = FakeChangeLog(long=3)
    store, slow = ExchangeStore(log), ExchangeStore(log)
    assert not store.save_snapshot()
    for key in "ab":
        store.change(bound("q", key))
    assert slow.bindings().version == 2
    assert not store.save_snapshot()
    store.change(bound("q", "c"))
    assert store.save_snapshot()
    assert (log.base, store.bindings().version, keys(store)) == (3, 3, keys(slow))
    assert keys(ExchangeStore(log)) == {("amq.direct", "q", key) for key in "abc"}
    assert not store.save_snapshot()


def test_a_document_that_cannot_be_read_is_no_reason_to_keep_the_old_one() -> None:
    """Each look says so until it can be read: else the old value would be served for good, and nobody would know."""
    document, clock = FakeDocument(), [0]

    def decode(content: bytes | None) -> bytes | None:
        if content == b"damaged":
            raise BadSnapshot("damaged")
        return content

    seen = CachedDocument(document, decode, lambda: clock[0])
    assert document.save(b"first", after=0)
    assert seen.value() == b"first"
    assert document.save(b"damaged", after=1)
    for _ in range(2):
        clock[0] += CACHED_MS
        with pytest.raises(BadSnapshot):
            seen.value()
    assert document.save(b"third", after=2)
    clock[0] += CACHED_MS
    assert seen.value() == b"third"
