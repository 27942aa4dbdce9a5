"""Views of a site for operators."""

from collections import Counter
from collections.abc import Callable

import msgspec
from msgspec.structs import asdict

from sluice.codec import pick_shared_fields
from sluice.federation.bridge_provisioner import BRIDGE_QUEUE_PREFIX
from sluice.federation.declared import BindingDeclaration, Declared
from sluice.federation.drift_repair import DriftRepair
from sluice.federation.link_service import LinkService
from sluice.federation.links.links import Introduction
from sluice.federation.links.registry import LinkRecord, describe_state, find_feeding_queues
from sluice.federation.links.states import LinkState
from sluice.federation.links.watch import Repairs
from sluice.federation.matching.bindings import Binding
from sluice.federation.operations import (
    BindingsView,
    BridgeView,
    ExchangesView,
    LinkView,
    PathsView,
    QueuesView,
    QueueView,
    SiteView,
)
from sluice.federation.settings import SiteNames


class SiteViews(msgspec.Struct, frozen=True, kw_only=True):
    """Builds views during one invocation. `senders` are the role ids that peers see as senders."""

    registrar: LinkService
    upkeep: DriftRepair
    names: SiteNames
    declared: Declared
    senders: tuple[str, ...]
    ways: Callable[[], PathsView]  # of dynamic routes
    kms_key_arn: str | None = None  # of the key for queues made at run time

    def site(self) -> SiteView:
        """Return the whole site's view."""
        registry, bindings = self.registrar.registry(), self.registrar.exchanges.bindings()
        forwards, fed, mends = self.registrar.last_forwards(), find_feeding_queues(registry), self.upkeep.watch().mends
        return SiteView(
            address=Introduction(**asdict(self.registrar.here), senders=self.senders),
            peer_accounts=self.registrar.peer_accounts,
            peers=tuple(peer for _, peer in sorted(self.registrar.known.value().items())),
            exchanges=bindings.exchanges,
            bindings=bindings.count,
            feeds=tuple(self.view_binding(binding) for binding in bindings if binding.queue in fed),
            links=tuple(_build_link_view(record) for _, record in sorted(registry.links.items())),
            bridges=tuple(
                BridgeView(
                    **asdict(record.bridge),
                    served=record.served,
                    declared=record.declared,
                    error=record.error,
                    state=LinkState.CLOSING if link is None else describe_state(record, link),
                    reads=None if record.queue is None else self.names.logical_name(record.queue),
                    last_forward_ms=forwards.get(name),
                    mends=mends.get(name, Repairs()),
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
        users = (binding.queue for binding in self.registrar.exchanges.bindings() if binding.queue not in made)
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
                    name=self.names.logical_name(queue),
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
        return BindingsView(version=bindings.version, bindings=tuple(map(self.view_binding, bound)))

    def view_binding(self, binding: Binding) -> BindingDeclaration:
        """Return a binding with its queue's logical name."""
        return BindingDeclaration.from_binding(binding, queue=self.names.logical_name(binding.queue))

    def exchanges(self) -> ExchangesView:
        """Return the site's exchanges."""
        return ExchangesView(exchanges=self.registrar.exchanges.bindings().exchanges)


def _build_link_view(record: LinkRecord) -> LinkView:
    return LinkView(**asdict(record.link), **pick_shared_fields(record, LinkView))
