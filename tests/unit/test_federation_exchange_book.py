"""A site's exchanges and bindings: changed by whoever wins, each change once, and nothing lost on the way."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import BadBinding, BadSnapshot
from sluice.federation.exchange_store import (
    MAX_RACES,
    Change,
    ExchangeBook,
    TooBusy,
    decode_table,
    feeding,
    with_binding,
    with_exchange,
    without_binding,
    without_bindings,
    without_exchange,
)
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.federation.matching.routing import Destination
from sluice.federation.seen import CACHED_MS, Seen
from tests.federation_fakes import FakeDocument

OWN = Exchange(name="own", type=ExchangeType.TOPIC, alternate="amq.fanout")


def bound(queue: str, key: str = "", exchange: str = "amq.direct", **arguments: object) -> Change:
    binding = Binding(exchange=exchange, queue=queue, key=key, arguments=arguments)  # type: ignore[arg-type]
    return with_binding(binding, Destination(queue=queue, url=f"url/{queue}"))


def keys(book: ExchangeBook) -> set[tuple[str, str, str]]:
    return {binding.id for binding in book.table().bindings}


def test_a_site_begins_with_the_standard_exchanges() -> None:
    table = ExchangeBook(FakeDocument()).table()
    assert (table.version, table.exchanges, table.bindings) == (0, STANDARD_EXCHANGES, ())


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
    document, expected = FakeDocument(), set[tuple[str, str, str]]()
    book = ExchangeBook(document)
    for adds, queue, key, rivals in steps:
        document.rivals = rivals
        id_ = ("amq.direct", queue, key)
        if adds:
            book.change(bound(queue, key))
            expected.add(id_)
        elif id_ in expected:
            book.change(without_binding(id_))
            expected.remove(id_)
        else:
            with pytest.raises(BadBinding, match="is not bound"):
                book.change(without_binding(id_))
        assert keys(book) == expected
        assert {each.queue for each in book.table().queues} == {queue for _, queue, _ in expected}


def test_the_same_change_again_writes_nothing() -> None:
    document = FakeDocument()
    book = ExchangeBook(document)
    for _ in range(2):
        book.change(bound("q", "a"))
        book.change(with_exchange(OWN))
        book.change(feeding({"q"}))
        book.change(without_bindings(lambda binding: binding.queue == "other"))
    # Binding again forgets who feeds on it, and noting that is a change: two of each.
    assert document.written <= 5


def test_versions_go_up_with_every_write() -> None:
    document = FakeDocument()
    book = ExchangeBook(document)
    book.change(bound("q", "a"))
    book.change(bound("q", "b"))
    assert (book.table().version, document.written) == (2, 2)


def test_who_always_loses_gives_up() -> None:
    document = FakeDocument(rivals=MAX_RACES)
    with pytest.raises(TooBusy, match=f"{MAX_RACES} races"):
        ExchangeBook(document).change(bound("q"))


def test_a_rivals_binding_is_kept() -> None:
    document = FakeDocument()
    book = ExchangeBook(document)

    def slowly(change: Change, meanwhile: Callable[[], object]) -> Change:
        waiting = [meanwhile]

        def changed(table):  # type: ignore[no-untyped-def]
            if waiting:
                waiting.pop()()
            return change(table)

        return changed

    book.change(slowly(bound("mine"), lambda: book.change(bound("theirs"))))
    assert {queue for _, queue, _ in keys(book)} == {"mine", "theirs"}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (bound("q", exchange="nowhere"), "no such exchange: nowhere"),
        (bound("q", "k" * 257), "257 characters"),
        (bound("q", exchange="amq.match"), "x-match"),
        (with_exchange(Exchange(name="amq.direct", type=ExchangeType.TOPIC)), "there is an exchange of this name"),
        (without_exchange("amq.direct"), "every site has"),
        (without_exchange("nowhere"), "no such exchange"),
        (without_exchange("own"), "own has 1 bindings: unbind them first"),
        (bound("q", "a", exchange="own", n=1), "with other arguments"),
        (without_binding(("own", "q", "b")), "q is not bound to own by 'b'"),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_nothing_is_written(change: Change, error: str) -> None:
    document = FakeDocument()
    book = ExchangeBook(document)
    book.change(with_exchange(OWN))
    book.change(bound("q", "a", exchange="own"))
    before = document.content
    with pytest.raises(BadBinding, match=error):
        book.change(change)
    assert document.content == before


def test_an_exchange_that_is_anothers_alternate_stays() -> None:
    book = ExchangeBook(FakeDocument())
    book.change(with_exchange(Exchange(name="last", type=ExchangeType.FANOUT)))
    book.change(with_exchange(Exchange(name="first", type=ExchangeType.FANOUT, alternate="last")))
    with pytest.raises(BadBinding):
        book.change(without_exchange("last"))
    assert "last" in {each.name for each in book.table().exchanges}


def test_what_feeds_a_route_is_noted_and_forgotten() -> None:
    book = ExchangeBook(FakeDocument())
    book.change(bound("q"))
    book.change(feeding({"q", "unbound"}))
    assert [each.feeds_route for each in book.table().queues] == [True]
    book.change(feeding(()))
    assert [each.feeds_route for each in book.table().queues] == [False]


def test_a_damaged_table_is_not_taken_for_an_empty_one() -> None:
    with pytest.raises(BadSnapshot):
        ExchangeBook(FakeDocument(content=b"damaged", written=1)).table()


def test_what_is_seen_is_at_most_a_second_old_and_decoded_once_a_version() -> None:
    document, clock, decoded = FakeDocument(), [0], []

    def decode(content: bytes | None) -> int:
        decoded.append(content)
        return decode_table(content).version

    seen = Seen(document, decode, lambda: clock[0])
    assert (seen.value(), seen.value(), len(decoded)) == (0, 0, 1)
    ExchangeBook(document).change(bound("q"))
    clock[0] = CACHED_MS - 1
    assert (seen.value(), len(decoded)) == (0, 1)
    clock[0] = CACHED_MS
    assert (seen.value(), len(decoded)) == (1, 2)
    clock[0] = 10 * CACHED_MS
    assert (seen.value(), len(decoded)) == (1, 2)
