"""The routing table: a site's bindings at one version, compiled for many messages. Pure.

It is made anew of each version; what is stored is `bindings`'.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.errors import UnknownExchange
from sluice.federation.matching.bindings import Bindings, BoundKeys, Destination
from sluice.federation.matching.exchanges import ExchangeType, way
from sluice.federation.matching.headers import Conditions, HeadersIndex
from sluice.federation.matching.topics import TopicIndex
from sluice.federation.matching.typed_values import Headers, of_stored

Destinations = tuple[Destination, ...]
NOWHERE: Destinations = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What of a message decides where it goes."""

    exchange: str
    key: str
    headers: Headers = field(default_factory=dict)


Matcher = Callable[[Publication], Destinations]


class RoutingTable:
    """Where one site's messages go."""

    __slots__ = ("_ways", "version")

    def __init__(self, bindings: Bindings) -> None:
        """Compile all of the bindings. Raises `BadBinding` for an alternate that isn't there."""
        self.version = bindings.version
        numbers = {each.queue: number for number, each in enumerate(bindings.queues)}
        matchers = {}
        for exchange in bindings.exchanges:
            by_queue = bindings.bound.get(exchange.name, {})
            bound = [(numbers[queue], keys) for queue, keys in by_queue.items()]
            matchers[exchange.name] = _compiled(exchange.type, bound, bindings.queues)
        exchanges = {each.name: each for each in bindings.exchanges}
        self._ways = {name: tuple(matchers[stop] for stop in way(name, exchanges)) for name in exchanges}

    def route(self, publication: Publication) -> Destinations:
        """Find the queues that get a copy, each once; none where neither the exchange nor an alternate has a match.

        Whether a bridge's queue may have it is the bridge's `crossing` to say: a message that is held back there counts
        as routed, and goes to no alternate. Raises `UnknownExchange`.
        """
        matchers = self._ways.get(publication.exchange)
        if matchers is None:
            raise UnknownExchange(publication.exchange)
        for matcher in matchers:
            found = matcher(publication)
            if found:
                return found
        return NOWHERE


Bound = list[tuple[int, BoundKeys]]  # queues by their place among the destinations, with their keys


def _compiled(type_: ExchangeType, bound: Bound, line: Destinations) -> Matcher:
    match type_:
        case ExchangeType.DIRECT:
            by_key: defaultdict[str, set[int]] = defaultdict(set)
            for number, keys in bound:
                for key in keys:
                    by_key[key].add(number)
            destinations = {key: _those(numbers, line) for key, numbers in by_key.items()}
            return lambda publication: destinations.get(publication.key, NOWHERE)
        case ExchangeType.FANOUT:
            everyone = _those({number for number, _ in bound}, line)
            return lambda _publication: everyone
        case ExchangeType.TOPIC:
            topics = TopicIndex((key, number) for number, keys in bound for key in keys)
            return lambda publication: _those(topics.matches(publication.key), line)
        case ExchangeType.HEADERS:
            asked = ((Conditions.of(of_stored(each)), number) for number, keys in bound for each in keys.values())
            headers = HeadersIndex(asked)
            return lambda publication: _those(headers.matches(publication.headers), line)


def _those(numbers: set[int], line: Destinations) -> Destinations:
    return tuple([line[number] for number in sorted(numbers)])
