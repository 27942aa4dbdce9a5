"""What operators, ticks and the bridge function ask of the links function, as JSON: one operation each.

The command line is one asker; a request from anywhere else is checked as strictly.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sluice.errors import BadBinding, BadConfiguration, BadRoute, SluiceError
from sluice.federation.codec import bridge_of, link_of, plain_bridge
from sluice.federation.declared import Declared, binding_of, exchange_of, plain_binding, plain_exchange, plain_link
from sluice.federation.dynamic.paths import Way
from sluice.federation.exchange_store import with_binding, with_exchange, without_binding, without_exchange
from sluice.federation.links.registry import (
    BridgeAdded,
    BridgeClosed,
    BridgeRecord,
    BridgeTold,
    LinkAdded,
    LinkHappened,
    LinkRecord,
    Registry,
    fed_queues,
    state_of,
)
from sluice.federation.links.states import Happening, Refused, State, Unreachable
from sluice.federation.matching.bindings import Binding, Destination
from sluice.federation.ports import Document
from sluice.federation.registrar import Registrar
from sluice.federation.settings import SiteNames

# After which there may be more to do.
CHANGES = frozenset(
    {
        "exchange_add",
        "exchange_del",
        "bind",
        "unbind",
        "link_add",
        "link_del",
        "link_tell",
        "bridge_add",
        "bridge_del",
        "bridge_tell",
        "tick",
        "sweep",
        "outage",
    }
)
MAX_KEYS = 100  # shown of a way; all are counted
TOLD = {each.value: each for each in (Happening.PAUSE, Happening.RESUME, Happening.DRAIN, Happening.RETRY)}


class BadRequest(BadConfiguration):
    """A request that names no operation, or lacks a field."""


class NoSuch(BadConfiguration):
    """There is no link or route of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The operations of one invocation. `applied` is where the last declaration stands that was applied."""

    registrar: Registrar
    names: SiteNames
    declared: Declared
    applied: Document
    ways: Callable[[], Mapping[str, list[Way]]]  # of dynamic routes, by exchange
    redrive: Callable[[str], int]  # of dead letters of the queue with this name, back into it: how many

    def perform(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Does what is asked. Raises a `BadConfiguration` for what the asker did wrong: nothing was changed then."""
        operations: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "site": self._site,
            "bindings": self._bindings,
            "ways": self._ways,
            "exchange_add": self._exchange_add,
            "exchange_del": self._exchange_del,
            "bind": self._bind,
            "unbind": self._unbind,
            "link_add": self._link_add,
            "link_del": self._link_del,
            "link_tell": self._link_tell,
            "bridge_add": self._bridge_add,
            "bridge_del": self._bridge_del,
            "bridge_tell": self._bridge_tell,
            "redrive": self._redrive,
            "outage": self._outage,
            "tick": self._tick,
            "sweep": self._sweep,
        }
        name = request.get("op") if isinstance(request, Mapping) else None
        if not isinstance(name, str) or name not in operations:
            raise BadRequest(f"no such operation: {name!r}; there are {', '.join(operations)}")
        return operations[name](request)

    # What there is

    def _site(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - every operation takes the request
        registry, bindings = self.registrar.registry(), self.registrar.exchanges.bindings()
        forwards = self.registrar.last_forwards()
        fed = fed_queues(registry)
        return {
            "address": asdict(self.registrar.here),
            "peer_accounts": sorted(self.registrar.peer_accounts),
            "exchanges": [plain_exchange(exchange) for exchange in bindings.exchanges],
            "bindings": bindings.count,
            "feeds": [plain_binding(self._shown(binding)) for binding in bindings if binding.queue in fed],
            "links": [_shown_link(record) for _, record in sorted(registry.links.items())],
            "bridges": [
                self._shown_bridge(registry, record, forwards) for _, record in sorted(registry.bridges.items())
            ],
        }

    def _shown_bridge(self, registry: Registry, record: BridgeRecord, forwards: Mapping[str, int]) -> dict[str, Any]:
        link = registry.links.get(record.bridge.link)
        return plain_bridge(record.bridge) | {
            "served": record.served,
            "declared": record.declared,
            "state": State.CLOSING.value if link is None else state_of(record, link),
            "error": record.error,
            "reads": None if record.queue is None else self.names.shown(record.queue),
            "last_forward_ms": forwards.get(record.bridge.name),
        }

    def _bindings(self, request: Mapping[str, Any]) -> dict[str, Any]:
        exchange = request.get("exchange")
        bindings = self.registrar.exchanges.bindings()
        bound = bindings if exchange is None else bindings.of(bindings.exchange(exchange).name)
        return {
            "version": bindings.version,
            "bindings": [plain_binding(self._shown(each)) for each in bound],
        }

    def _shown(self, binding: Binding) -> Binding:
        return replace(binding, queue=self.names.shown(binding.queue))

    def _ways(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - every operation takes the request
        """Who wants what of this site, by which way."""
        shown = [_shown_way(exchange, way) for exchange, ways in self.ways().items() for way in ways]
        return {"ways": shown}

    # Exchanges and bindings

    def _exchange_add(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            exchange = exchange_of(request)
        except ValueError as error:
            raise BadRequest(str(error)) from error
        self.registrar.exchanges.change(with_exchange(exchange))
        return plain_exchange(exchange)

    def _exchange_del(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.registrar.exchanges.change(without_exchange(_text(request, "name")))
        return {}

    def _bind(self, request: Mapping[str, Any]) -> dict[str, Any]:
        binding = self._binding(request)
        self.registrar.queues.count(binding.queue)  # it has to be there
        self._bound(binding)
        return plain_binding(binding)

    def _bound(self, binding: Binding) -> None:
        url = self.registrar.queues.url(binding.queue)
        feeds_route = binding.queue in fed_queues(self.registrar.registry())
        destination = Destination(queue=binding.queue, url=url, feeds_route=feeds_route)
        self.registrar.exchanges.change(with_binding(binding, destination))

    def _unbind(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.registrar.exchanges.change(without_binding(self._binding(request).id))
        return {}

    def _binding(self, request: Mapping[str, Any]) -> Binding:
        try:
            binding = binding_of(request)
        except (ValueError, SluiceError) as error:
            raise BadRequest(str(error)) from error
        return replace(binding, queue=self.names.physical(binding.queue))

    # Links and routes

    def _link_add(self, request: Mapping[str, Any]) -> dict[str, Any]:
        link = link_of(_object(request, "link"))
        self.registrar.advance([LinkAdded(link)])
        return plain_link(link)

    def _link_del(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name = self._link_name(request)
        self.registrar.advance([LinkHappened(name, Happening.CLOSE)])
        return {}

    def _link_tell(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name = self._link_name(request)
        self.registrar.advance([LinkHappened(name, _told(request))])
        return {}

    def _link_name(self, request: Mapping[str, Any]) -> str:
        name = _text(request, "name")
        if name not in self.registrar.registry().links:
            raise NoSuch(f"no such link: {name}")
        return name

    def _bridge_add(self, request: Mapping[str, Any]) -> dict[str, Any]:
        bridge = bridge_of(_object(request, "bridge"))
        existing = bridge.src if bridge.src_is_queue else bridge.queue
        if bridge.src_is_local and existing is not None:
            self.names.readable(existing)  # said at once; of one that is pulled the source says it
        self.registrar.advance([BridgeAdded(bridge)])
        return plain_bridge(bridge)

    def _bridge_del(self, request: Mapping[str, Any]) -> dict[str, Any]:
        record = self._bridge_record(request)
        registry = self.registrar.advance([BridgeClosed(record.bridge.name)])
        is_empty = all(each.closing for each in registry.bridges_of(record.bridge.link))
        if request.get("del_empty_link") is True and is_empty:
            self.registrar.advance([LinkHappened(record.bridge.link, Happening.CLOSE)])
        return {}

    def _bridge_tell(self, request: Mapping[str, Any]) -> dict[str, Any]:
        record, what = self._bridge_record(request), _told(request)
        if record.served:
            raise BadRoute(f"{record.bridge.name}: the site that it goes to asked for it: {what} it there")
        if what is Happening.DRAIN and not record.bridge.src_is_local:
            raise BadRoute(f"{record.bridge.name}: it is pulled: drain its link, or the route at its source")
        if what is Happening.RETRY:
            self.registrar.advance([LinkHappened(record.bridge.link, what)])
        else:
            self.registrar.advance([BridgeTold(record.bridge.name, what)])
        return {}

    def _redrive(self, request: Mapping[str, Any]) -> dict[str, Any]:
        record = self._bridge_record(request)
        if record.queue is None:
            raise BadRoute(f"{record.bridge.name}: its dead letters are at its source: redrive it there")
        return {"redriven": self.redrive(record.queue)}

    def _bridge_record(self, request: Mapping[str, Any]) -> BridgeRecord:
        name = _text(request, "name")
        record = self.registrar.registry().bridges.get(name)
        if record is None:
            raise NoSuch(f"no such route: {name}")
        return record

    # What comes by itself

    def _outage(self, request: Mapping[str, Any]) -> dict[str, Any]:
        error = _text(request, "error")
        event = Refused(error) if request.get("refused") is True else Unreachable(error)
        self.registrar.advance([LinkHappened(_text(request, "link"), event)], ticks=False)
        return {}

    def _tick(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - every operation takes the request
        self.registrar.advance()
        return {}

    def _sweep(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - every operation takes the request
        try:
            self._declare()
        finally:  # what can't be as it is declared holds up nothing else
            self.registrar.check_mappings()
            self.registrar.advance()
        return {}

    def _declare(self) -> None:
        """Makes what is declared, and takes away what was and is no longer."""
        content, version = self.applied.load()
        before = Declared() if content is None else Declared.parse(content.decode())
        for route in before.routes:
            if route not in self.declared.routes:
                self.registrar.advance([BridgeClosed(route.name)], ticks=False)
        for link in before.links:
            if link not in self.declared.links:
                self.registrar.advance([LinkHappened(link.name, Happening.CLOSE)], ticks=False)
        self._declare_bindings(before)
        for link in self.declared.links:
            self.registrar.take_in([LinkAdded(link, declared=True)])
        for route in self.declared.routes:
            self.registrar.take_in([BridgeAdded(route, declared=True)])
        if before != self.declared:
            self.applied.save(self.declared.to_json().encode(), after=version)

    def _declare_bindings(self, before: Declared) -> None:
        ids = {binding.id for binding in self.declared.bindings}
        for binding in before.bindings:
            if binding.id not in ids:
                self._ignoring_gone(without_binding(self._known(binding).id))
        for exchange in before.exchanges:
            if exchange.name not in {each.name for each in self.declared.exchanges}:
                self._ignoring_gone(without_exchange(exchange.name))
        for exchange in self.declared.exchanges:
            self.registrar.exchanges.change(with_exchange(exchange))
        for binding in self.declared.bindings:
            self._bound(self._known(binding))

    def _known(self, binding: Binding) -> Binding:
        return replace(binding, queue=self.names.physical(binding.queue))

    def _ignoring_gone(self, change: Any) -> None:
        """Somebody may have taken it away at run time, or bound something to it: then that stays."""
        try:
            self.registrar.exchanges.change(change)
        except BadBinding:
            return


def _shown_link(record: LinkRecord) -> dict[str, Any]:
    status = asdict(record.status) | {"state": record.status.state.value}
    return plain_link(record.link) | {
        "served": record.served,
        "declared": record.declared,
        "status": status,
        "exchanges": dict(record.exchanges),
        "address": None if record.address is None else asdict(record.address),
    }


def _shown_way(exchange: str, way: Way) -> dict[str, Any]:
    return {
        "exchange": exchange,
        "origin": way.origin,
        "route": way.bridge,
        "path": list(way.path),
        "active": way.active,
        "outages": way.outages,
        "wants": len(way.wants),
        "keys": sorted(want.key for want in way.wants)[:MAX_KEYS],
    }


def _told(request: Mapping[str, Any]) -> Happening:
    what = request.get("what")
    if not isinstance(what, str) or what not in TOLD:
        raise BadRequest(f"what {what!r} is none of {', '.join(TOLD)}")
    return TOLD[what]


def _text(request: Mapping[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{name} is missing or no text")
    return value


def _object(request: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = request.get(name)
    if not isinstance(value, Mapping):
        raise BadRequest(f"{name} is missing or no object")
    return value
