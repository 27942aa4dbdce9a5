"""Makes what a deployment declares, and takes away what it did and no longer does. What was never declared stays."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sluice.errors import BadBinding, BadConfiguration, BadRoute
from sluice.federation.declared import DECLARED, Declared
from sluice.federation.exchange_store import with_exchange, without_binding, without_exchange
from sluice.federation.link_operations import LinkOperations
from sluice.federation.links.links import Bridge
from sluice.federation.links.peers import Peer
from sluice.federation.links.states import LinkEvent
from sluice.federation.links.transitions import BridgeAdded, BridgeChanged, BridgeClosed, LinkTold
from sluice.federation.upkeep import Upkeep

if TYPE_CHECKING:  # at run time the shell is given its adapters, and imports none
    from sluice.aws.documents import DynamoDocument


class Declarations(msgspec.Struct, frozen=True, kw_only=True):
    """One invocation's. `peers` are those that are declared; `applied` is where the last declaration stands."""

    links: LinkOperations
    upkeep: Upkeep
    peers: tuple[Peer, ...]
    declared: Declared
    applied: "DynamoDocument"

    def sweep(self) -> None:
        """Make what is declared, and do what is due. Raises a `BadConfiguration` for all that can't be as declared."""
        faults: list[BadConfiguration] = []
        try:
            faults += self.declare_peers()
            faults += self.declare()
        finally:  # what can't be as it is declared holds up nothing else
            try:
                self.upkeep.sweep()
            finally:
                self.links.registrar.advance()
                self.links.registrar.exchanges.fold()
        if faults:
            raise BadConfiguration("; ".join(map(str, faults)))

    def declare(self) -> Sequence[BadConfiguration]:
        """Make what is declared, and take away what was and is no longer; what can't be, the rest being there."""
        content, version = self.applied.load()
        before, declared, change = Declared(), self.declared, self.links.registrar.exchanges.change
        if content is not None:
            before = DECLARED.of_text(content)
        kept = {route.name: route for route in declared.routes}
        gone = [
            BridgeClosed(route.name)
            for route in before.routes
            if route.name not in kept or not route.can_become(kept[route.name])
        ]
        closed_links = [LinkTold(link.name, LinkEvent.CLOSE) for link in before.links if link not in declared.links]
        self.links.registrar.advance([*gone, *closed_links], ticks=False)
        ids = {each.binding().id for each in declared.bindings}
        names = {each.name for each in declared.exchanges}
        unbound = [each for each in before.bindings if each.binding().id not in ids]
        withdrawn = [
            *(without_binding((each.exchange, self.links.names.physical(each.queue), each.key)) for each in unbound),
            *(without_exchange(each.name) for each in before.exchanges if each.name not in names),
        ]
        for each in withdrawn:
            with suppress(BadBinding):  # taken away at run time, or something was bound to it: then that stays
                change(each)
        watch = self.upkeep.watch()
        # One whose queue is gone comes back with that.
        there = [each for each in declared.bindings if not watch.of(self.links.names.physical(each.queue)).unbound]

        faults = _faults(
            [
                *(partial(change, with_exchange(exchange)) for exchange in declared.exchanges),
                *(partial(self.links.bind, binding) for binding in there),
                *(partial(self.links.add_link, link, declared=True) for link in declared.links),
                *(partial(self.declare_route, route) for route in declared.routes),
            ]
        )
        if before != declared:
            self.applied.save(DECLARED.text(declared).encode(), after=version)
        return faults

    def declare_route(self, route: Bridge) -> None:
        """Make a route that is declared, or change it where it stands. Raises `BadRoute` for one that can't be."""
        there = self.links.registrar.registry().bridges.get(route.name)
        if there is not None and there.closing:
            return  # another of its name is about to go: this one is made with the next sweep after that
        if there is None or there.bridge.filter != route.filter:
            self.links.check_filter(route)
        changes = there is not None and there.bridge.can_become(route)
        self.links.registrar.take_in([BridgeChanged(route) if changes else BridgeAdded(route, declared=True)])
        self.links.note_tag(route)

    def declare_peers(self) -> Sequence[BadConfiguration]:
        """Let those be peers that are declared, and those no longer that were; what can't be, the rest being there."""
        known, declared = self.links.registrar.known.value(), {peer.tag: peer for peer in self.peers}
        if known:  # a deployment may have switched it off again
            self.links.hear_peers()
        faults = _faults(partial(self.links.add_peer, peer) for tag, peer in declared.items() if peer != known.get(tag))
        for tag in [tag for tag, peer in known.items() if peer.declared and tag not in declared]:
            with suppress(BadRoute):  # one that links of this site go to stays
                self.links.remove_peer(tag)
        return faults


def _faults(makes: Iterable[Callable[[], object]]) -> Sequence[BadConfiguration]:
    """Make each, and return what can't be made: it holds up none of the others."""
    faults: list[BadConfiguration] = []
    for make in makes:
        try:
            make()
        except BadConfiguration as fault:
            faults.append(fault)
    return faults
