"""What operators are shown of a site: what it has, and how that is."""

from collections import Counter
from collections.abc import Callable

import msgspec
from msgspec.structs import asdict

from sluice.codec import shared_fields
from sluice.federation.bridge_works import BRIDGE_QUEUE_PREFIX
from sluice.federation.declared import BindingDeclaration, Declared
from sluice.federation.links.links import Introduction
from sluice.federation.links.registry import LinkRecord, fed_queues, state_of
from sluice.federation.links.states import LinkState
from sluice.federation.links.watch import Mends
from sluice.federation.matching.bindings import Binding
from sluice.federation.operations import (
    BindingsView,
    BridgeView,
    ExchangesView,
    LinkView,
    QueuesView,
    QueueView,
    SiteView,
    WaysView,
)
from sluice.federation.registrar import LinkService
from sluice.federation.settings import SiteNames
from sluice.federation.upkeep import DriftRepair


class SiteViews(msgspec.Struct, frozen=True, kw_only=True):
    """One invocation's. `senders` are ids of the roles of this site's functions that peers hear from."""

    registrar: LinkService
    upkeep: DriftRepair
    names: SiteNames
    declared: Declared
    senders: tuple[str, ...]
    ways: Callable[[], WaysView]  # of dynamic routes
    kms_key_arn: str | None = None  # of the key for queues made at run time

    def site(self) -> SiteView:
        """All that the site says of itself."""
        registry, bindings = self.registrar.registry(), self.registrar.exchanges.bindings()
        forwards, fed, mends = self.registrar.last_forwards(), fed_queues(registry), self.upkeep.watch().mends
        return SiteView(
            address=Introduction(**asdict(self.registrar.here), senders=self.senders),
            peer_accounts=self.registrar.peer_accounts,
            peers=tuple(peer for _, peer in sorted(self.registrar.known.value().items())),
            exchanges=bindings.exchanges,
            bindings=bindings.count,
            feeds=tuple(self.shown(each) for each in bindings if each.queue in fed),
            links=tuple(_shown_link(record) for _, record in sorted(registry.links.items())),
            bridges=tuple(
                BridgeView(
                    **asdict(record.bridge),
                    served=record.served,
                    declared=record.declared,
                    error=record.error,
                    state=LinkState.CLOSING if link is None else state_of(record, link),
                    reads=None if record.queue is None else self.names.shown(record.queue),
                    last_forward_ms=forwards.get(name),
                    mends=mends.get(name, Mends()),
                )
                for name, record in sorted(registry.bridges.items())
                for link in [registry.links.get(record.bridge.link)]
            ),
            declared=self.declared,
        )

    def queues(self) -> QueuesView:
        """Return the queues that are deployed, bound, or read by routes: not those that routes have of their own."""
        records = sorted(self.registrar.registry().bridges.items())
        made = {record.queue for _, record in records if record.makes_queue}
        # A queue that is being made anew is known by its name alone.
        users = (each.queue for each in self.registrar.exchanges.bindings() if each.queue not in made)
        bound = Counter(queue for queue in users if not queue.startswith(BRIDGE_QUEUE_PREFIX))
        read = [(record.queue, name) for name, record in records if record.bridge.src_is_local]
        deployed = self.names.queues.values()
        known = {*deployed, *bound, *(queue for queue, _ in read if queue is not None and queue not in made)}
        return QueuesView(
            address=self.registrar.here,
            patterns=self.names.patterns,
            kms_key_arn=self.kms_key_arn,
            queues=tuple(
                QueueView(
                    name=self.names.shown(queue),
                    queue=queue,
                    deployed=queue in deployed,
                    bindings=bound[queue],
                    routes=tuple(name for reads, name in read if reads == queue),
                )
                for queue in sorted(known)
            ),
        )

    def bindings(self, exchange: str | None) -> BindingsView:
        """Return the bindings of an exchange, or of all. Raises `BadBinding` for one that isn't there."""
        bindings = self.registrar.exchanges.bindings()
        bound = bindings if exchange is None else bindings.of(bindings.exchange(exchange).name)
        return BindingsView(version=bindings.version, bindings=tuple(map(self.shown, bound)))

    def shown(self, binding: Binding) -> BindingDeclaration:
        """Return a binding by the name that people know its queue by."""
        return BindingDeclaration.of(binding, queue=self.names.shown(binding.queue))

    def exchanges(self) -> ExchangesView:
        """Return the site's exchanges."""
        return ExchangesView(exchanges=self.registrar.exchanges.bindings().exchanges)


def _shown_link(record: LinkRecord) -> LinkView:
    return LinkView(**asdict(record.link), **shared_fields(record, LinkView))
