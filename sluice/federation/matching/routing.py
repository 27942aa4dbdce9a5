"""The routing table: one site's exchanges and bindings at one version, compiled for many messages, and as bytes. Pure.

Bytes are for storage: a mark, the format's number, then compressed JSON. They are checked when read, and compiled anew:
the compiled form is no one's interface.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sluice.errors import BadBinding, BadSnapshot, SluiceError, UnknownExchange
from sluice.federation.matching.bindings import Binding, check_limits, distinct
from sluice.federation.matching.exchanges import Exchange, ExchangeType, way
from sluice.federation.matching.headers import Conditions, HeadersIndex
from sluice.federation.matching.topics import TopicIndex
from sluice.federation.matching.tracing import Crossing
from sluice.federation.matching.typed_values import Headers, of_json, to_json

MARK = b"SLRT"
FORMAT = 1
MAX_SNAPSHOT_BYTES = 256 * 1024 * 1024  # of JSON: no damaged or hostile snapshot takes all of a function's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A queue that can be bound. `crossing` where it is a bridge's; `feeds_route` where a queue route reads it."""

    queue: str
    url: str
    crossing: Crossing | None = None
    feeds_route: bool = False

    @property
    def is_fifo(self) -> bool:
        """Whether SQS keeps its messages in order."""
        return self.url.endswith(".fifo")

    @property
    def goes_on(self) -> bool:
        """Whether the queue's messages go to a peer, and so need their metadata whole."""
        return self.crossing is not None or self.feeds_route


Destinations = tuple[Destination, ...]
NOWHERE: Destinations = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What of a message decides where it goes."""

    exchange: str
    key: str
    headers: Headers = field(default_factory=dict)


class _Matcher(Protocol):
    """One exchange's bindings, compiled."""

    def destinations(self, publication: Publication) -> Destinations: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingTable:
    """Where one site's messages go. `exchanges`, `queues` and `bindings` are what it was compiled from."""

    version: int
    exchanges: tuple[Exchange, ...]
    queues: tuple[Destination, ...]
    bindings: tuple[Binding, ...]
    _ways: Mapping[str, Sequence[_Matcher]] = field(repr=False, compare=False)

    @classmethod
    def of(
        cls,
        *,
        version: int,
        exchanges: Iterable[Exchange],
        queues: Iterable[Destination],
        bindings: Iterable[Binding],
    ) -> "RoutingTable":
        """Compiles a table. Raises `BadBinding` for a name that isn't there, or a binding that can't be."""
        by_name = {exchange.name: exchange for exchange in exchanges}
        by_queue = {queue.queue: queue for queue in queues}
        kept = distinct(bindings)
        matchers = _matchers(by_name, by_queue, kept)
        return cls(
            version=version,
            exchanges=tuple(by_name.values()),
            queues=tuple(by_queue.values()),
            bindings=kept,
            _ways={name: _way(name, by_name, matchers) for name in by_name},
        )

    @classmethod
    def from_bytes(cls, snapshot: bytes) -> "RoutingTable":
        """Reads what `to_bytes` wrote. Raises `BadSnapshot`."""
        return _read(snapshot)

    def to_bytes(self) -> bytes:
        """The table for storage. Equal tables give equal bytes."""
        return MARK + bytes([FORMAT]) + zlib.compress(json.dumps(_document(self), separators=(",", ":")).encode())

    def route(self, publication: Publication) -> Destinations:
        """The queues that get a copy, each once; none where neither the exchange nor an alternate has a match.

        Whether a bridge's queue may have it is the bridge's `crossing` to say: a message that is held back there counts
        as routed, and goes to no alternate. Raises `UnknownExchange`.
        """
        matchers = self._ways.get(publication.exchange)
        if matchers is None:
            raise UnknownExchange(publication.exchange)
        for matcher in matchers:
            found = matcher.destinations(publication)
            if found:
                return found
        return NOWHERE


def _way(name: str, exchanges: Mapping[str, Exchange], matchers: Mapping[str, _Matcher]) -> list[_Matcher]:
    try:
        return [matchers[stop] for stop in way(name, exchanges)]
    except KeyError as missing:
        raise BadBinding(f"{name}: no such alternate exchange: {missing.args[0]}") from None


def _matchers(
    exchanges: Mapping[str, Exchange], queues: Mapping[str, Destination], bindings: Iterable[Binding]
) -> dict[str, _Matcher]:
    by_exchange: defaultdict[str, list[_Bound]] = defaultdict(list)
    numbers = {name: number for number, name in enumerate(queues)}
    for binding in bindings:
        if binding.exchange not in exchanges:
            raise BadBinding(f"no such exchange: {binding.exchange}")
        if binding.queue not in numbers:
            raise BadBinding(f"no such queue: {binding.queue}")
        check_limits(binding)
        by_exchange[binding.exchange].append((binding, numbers[binding.queue]))
    line = tuple(queues.values())
    return {name: _COMPILED[exchange.type](by_exchange[name], line) for name, exchange in exchanges.items()}


_Bound = tuple[Binding, int]  # with its queue's place among the destinations


class _Direct:
    def __init__(self, bindings: Iterable[_Bound], line: Destinations) -> None:
        by_key: defaultdict[str, set[int]] = defaultdict(set)
        for binding, number in bindings:
            by_key[binding.key].add(number)
        self._by_key = {key: _those(numbers, line) for key, numbers in by_key.items()}

    def destinations(self, publication: Publication) -> Destinations:
        return self._by_key.get(publication.key, NOWHERE)


class _Fanout:
    def __init__(self, bindings: Iterable[_Bound], line: Destinations) -> None:
        self._all = _those({number for _, number in bindings}, line)

    def destinations(self, publication: Publication) -> Destinations:  # noqa: ARG002 - a fanout looks at nothing
        return self._all


class _Topic:
    def __init__(self, bindings: Iterable[_Bound], line: Destinations) -> None:
        self._line = line
        self._index = TopicIndex((binding.key, number) for binding, number in bindings)

    def destinations(self, publication: Publication) -> Destinations:
        return _those(self._index.matches(publication.key), self._line)


class _Headers:
    def __init__(self, bindings: Iterable[_Bound], line: Destinations) -> None:
        self._line = line
        self._index = HeadersIndex((Conditions.of(binding.arguments), number) for binding, number in bindings)

    def destinations(self, publication: Publication) -> Destinations:
        return _those(self._index.matches(publication.headers), self._line)


_COMPILED: Mapping[ExchangeType, type[_Direct | _Fanout | _Topic | _Headers]] = {
    ExchangeType.DIRECT: _Direct,
    ExchangeType.FANOUT: _Fanout,
    ExchangeType.TOPIC: _Topic,
    ExchangeType.HEADERS: _Headers,
}


def _those(numbers: set[int], line: Destinations) -> Destinations:
    return tuple([line[number] for number in sorted(numbers)])


def _document(table: RoutingTable) -> dict[str, Any]:
    numbers = {queue.queue: number for number, queue in enumerate(table.queues)}
    bindings: dict[str, list[list[Any]]] = {exchange.name: [] for exchange in table.exchanges}
    for binding in table.bindings:
        entry: list[Any] = [numbers[binding.queue], binding.key]
        bindings[binding.exchange].append([*entry, to_json(binding.arguments)] if binding.arguments else entry)
    return {
        "version": table.version,
        "exchanges": [[exchange.name, exchange.type, exchange.alternate] for exchange in table.exchanges],
        "queues": [[q.queue, q.url, _crossing_document(q.crossing), q.feeds_route] for q in table.queues],
        "bindings": bindings,
    }


def _crossing_document(crossing: Crossing | None) -> list[Any] | None:
    if crossing is None:
        return None
    return [crossing.peer, crossing.tag, sorted(crossing.excludes), crossing.max_hops]


def _read(snapshot: bytes) -> RoutingTable:
    if snapshot[: len(MARK)] != MARK:
        raise BadSnapshot("not a routing snapshot")
    if snapshot[len(MARK) : len(MARK) + 1] != bytes([FORMAT]):
        raise BadSnapshot(f"format {snapshot[len(MARK) :][:1].hex()}, not {FORMAT:02x}")
    document = _decompressed(snapshot[len(MARK) + 1 :])
    try:
        return _table(document)
    except (LookupError, TypeError, ValueError, AttributeError, SluiceError) as error:
        raise BadSnapshot(f"{type(error).__name__}: {error}") from None


def _decompressed(compressed: bytes) -> Any:
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(compressed, MAX_SNAPSHOT_BYTES)
        if not inflate.eof:
            raise BadSnapshot("cut short, or too large")
        return json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise BadSnapshot(str(error)) from None


def _table(document: dict[str, Any]) -> RoutingTable:
    queues = [
        Destination(queue=name, url=url, crossing=_crossing(crossing), feeds_route=feeds_route)
        for name, url, crossing, feeds_route in document["queues"]
    ]
    return RoutingTable.of(
        version=int(document["version"]),
        exchanges=[
            Exchange(name=name, type=ExchangeType(kind), alternate=alternate)
            for name, kind, alternate in document["exchanges"]
        ],
        queues=queues,
        bindings=[
            Binding(exchange=name, queue=queues[number].queue, key=key, arguments=of_json(*arguments or ({},)))
            for name, of_exchange in document["bindings"].items()
            for number, key, *arguments in of_exchange
        ],
    )


def _crossing(document: list[Any] | None) -> Crossing | None:
    if document is None:
        return None
    peer, tag, excludes, max_hops = document
    return Crossing(peer=peer, tag=tag, excludes=frozenset(excludes), max_hops=int(max_hops))
