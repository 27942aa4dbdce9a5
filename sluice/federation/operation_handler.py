"""Applies operations of operators, ticks, the bridge function and deployments to a site.

Requests are checked as strictly as on the command line. Each sweep creates declared objects that are missing, and
removes objects that are no longer declared. Objects that were never declared stay.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict, replace

from sluice.codec import pick_shared_fields
from sluice.errors import BadConfiguration, BadRoute
from sluice.federation import operations
from sluice.federation.bridge_provisioner import BRIDGE_QUEUE_PREFIX
from sluice.federation.declared import DECLARED, BindingDeclaration, Declared
from sluice.federation.drift_repair import DriftRepair
from sluice.federation.exchange_store import add_binding, add_exchange, remove_binding, remove_exchange
from sluice.federation.link_service import LinkService
from sluice.federation.links import transitions
from sluice.federation.links.links import Bridge, Introduction, Link, find_key_problem
from sluice.federation.links.peers import MAX_RULES, Peer, check_peer, describe_unknown_peer
from sluice.federation.links.registry import BridgeRecord, describe_state, find_feeding_queues
from sluice.federation.links.states import AccessRefused, Command, LinkEvent, LinkState, Unreachable
from sluice.federation.links.watch import Repairs, SiteWatch
from sluice.federation.matching.bindings import Binding, Destination
from sluice.federation.matching.exchanges import Exchange
from sluice.federation.settings import SiteNames
from sluice.federation.topology.entries import Entry, index_by_key, make_delete_operation

if TYPE_CHECKING:  # Adapters are passed in as arguments, so their classes are only imported for type checking.
    from sluice.aws.documents import DynamoDocument


class NotFound(BadConfiguration):
    """The site has no link, route or peer of the requested name."""


class OperationHandler(msgspec.Struct, frozen=True, kw_only=True):
    """Applies operations during one invocation. `applied_document` stores the last applied declaration.

    `sender_role_ids` are the role ids that peers see as senders.
    """

    link_service: LinkService
    drift_repair: DriftRepair
    site_names: SiteNames
    enable_peer_mappings: Callable[[], None]  # enables the triggers of the queues to which peers send
    peers: tuple[Peer, ...]
    declared: Declared
    applied_document: "DynamoDocument"
    sender_role_ids: tuple[str, ...]
    read_paths: Callable[[], operations.PathsView]  # returns the paths of dynamic routes
    kms_key_arn: str | None = None  # the key of queues that are created at run time

    def apply(self, operation: operations.FederationOperation) -> object:  # noqa: C901, PLR0911, PLR0912 - one case an operation
        """Apply an operation and return its result.

        An invalid request raises a `BadConfiguration`, and a missing queue `QueueGone`. After these errors nothing has
        changed. Also raises the link service's errors.
        """
        link_service = self.link_service
        match operation:
            case operations.ShowSite():
                return self.view_site()
            case operations.ListQueues():
                return self.view_queues()
            case operations.ListBindings(exchange=name):
                return self.view_bindings(name)
            case operations.ListPaths():
                return self.read_paths()
            case operations.Redrive(name=name):
                return self.redrive(name)
            case operations.AddExchange():
                exchange = Exchange(**pick_shared_fields(operation, Exchange))
                link_service.exchanges.change(add_exchange(exchange))
                return exchange
            case operations.DeleteExchange(name=name):
                link_service.exchanges.change(remove_exchange(name))
            case operations.BindQueue():
                declaration = operation.declaration()
                queue = self.site_names.physical_name(declaration.queue)
                link_service.provisioner.queues.count(queue)  # this raises `QueueGone` if the queue is missing
                self.bind(declaration, replaces=operation.replaces)
                return BindingDeclaration.from_binding(declaration.binding(queue=queue))
            case operations.UnbindQueue(exchange=name, queue=queue, key=key):
                link_service.exchanges.change(remove_binding((name, self.site_names.physical_name(queue), key)))
            case operations.AddPeer(peer=peer):
                self.add_peer(peer)
                return peer
            case operations.DeletePeer(name=name):
                self.remove_peer(name)
            case operations.AddLink(link=link):
                self.add_link(link)
                return link
            case operations.CloseLink(name=name, force=force):
                self.command_link(name, LinkEvent.CLOSE)
                link_service.save_changes([transitions.remove_link(name)] if force else [])
            case operations.CommandLink(name=name, command=command):
                self.command_link(name, command)
            case operations.AddBridge(bridge=bridge):
                self.save_route(bridge, transitions.add_bridge(bridge))
                return bridge
            case operations.ChangeBridge(bridge=bridge):
                self.change_bridge(bridge)
                return bridge
            case operations.CloseBridge():
                self.close_bridge(operation)
            case operations.CommandBridge():
                self.command_bridge(operation)
            case operations.ReportOutage(link=name, error=error, refused=refused, at_ms=at_ms):
                news = AccessRefused(error, at_ms) if refused else Unreachable(error, at_ms)
                link_service.advance([transitions.update_link(name, news)], ticks=False)
            case operations.ReportFailingQueues(copies=copies, refusals=refusals):
                self.drift_repair.report(copies, refusals or {})
            case operations.Tick():
                link_service.advance()  # Due actions run first, because the checks may use up the time.
                self.drift_repair.recheck()
                link_service.advance(ticks=False)
            case operations.SweepSite():
                self.sweep()
        return None

    def redrive(self, name: str) -> operations.RedriveResult:
        """Redrive a route's dead letters. Raises `NotFound`, or `BadRoute` if the route's source is another site."""
        queue = self.record(name).queue
        if queue is None:
            raise BadRoute(f"{name}: its dead letters are at its source: redrive it there")
        return operations.RedriveResult(redriven=self.drift_repair.redrive(queue))

    # The methods below return views for operators.

    def view_site(self) -> operations.SiteView:
        """Return the site's objects with their status."""
        registry, bindings = self.link_service.registry(), self.link_service.exchanges.bindings()
        forwards, fed = self.link_service.last_forwards(), find_feeding_queues(registry)
        watch = self.drift_repair.watch()
        refusing = {self.site_names.logical_name(queue): reason for queue, reason in watch.refusals.items()}
        return operations.SiteView(
            address=Introduction(**asdict(self.link_service.here), senders=self.sender_role_ids),
            peer_accounts=self.link_service.peer_accounts,
            peers=tuple(peer for _, peer in sorted(self.link_service.known_peers.value().items())),
            exchanges=bindings.exchanges,
            bindings=bindings.count,
            feeds=tuple(self.view_binding(binding) for binding in bindings if binding.queue in fed),
            links=tuple(
                operations.LinkView(**asdict(record.link), **pick_shared_fields(record, operations.LinkView))
                for _, record in sorted(registry.links.items())
            ),
            bridges=tuple(
                operations.BridgeView(
                    **asdict(record.bridge),
                    served=record.served,
                    declared=record.declared,
                    error=record.error,
                    state=LinkState.CLOSING if link is None else describe_state(record, link),
                    reads=None if record.queue is None else self.site_names.logical_name(record.queue),
                    last_forward_ms=forwards.get(name),
                    repairs=watch.repairs.get(name, Repairs()),
                )
                for name, record in sorted(registry.bridges.items())
                for link in [registry.links.get(record.bridge.link)]
            ),
            declared=self.declared,
            refusing=refusing or UNSET,
        )

    def view_queues(self) -> operations.QueuesView:
        """Return all queues that are deployed, bound, or read by routes. Queues that routes created are left out."""
        records = sorted(self.link_service.registry().bridges.items())
        made = {record.queue for _, record in records if record.makes_queue}
        # A bridge queue that is being recreated is recognized only by its name.
        users = (binding.queue for binding in self.link_service.exchanges.bindings() if binding.queue not in made)
        bound = Counter(queue for queue in users if not queue.startswith(BRIDGE_QUEUE_PREFIX))
        read = [(record.queue, name) for name, record in records if record.bridge.src_is_local]
        deployed = self.site_names.queues.values()
        known = {*deployed, *bound, *(queue for queue, _ in read if queue is not None and queue not in made)}
        return operations.QueuesView(
            address=self.link_service.here,
            patterns=self.site_names.patterns,
            kms_key_arn=self.kms_key_arn,
            queues=tuple(
                operations.QueueView(
                    name=self.site_names.logical_name(queue),
                    queue=queue,
                    deployed=queue in deployed,
                    bindings=bound[queue],
                    routes=tuple(name for reads, name in read if reads == queue),
                )
                for queue in sorted(known)
            ),
        )

    def view_bindings(self, exchange: str | None) -> operations.BindingsView:
        """Return the bindings of an exchange, or of all exchanges. Raises `BadBinding` if the exchange is missing."""
        bindings = self.link_service.exchanges.bindings()
        bound = bindings if exchange is None else bindings.of(bindings.exchange(exchange).name)
        return operations.BindingsView(version=bindings.version, bindings=tuple(map(self.view_binding, bound)))

    def view_binding(self, binding: Binding) -> BindingDeclaration:
        """Return a binding with its queue's logical name."""
        return BindingDeclaration.from_binding(binding, queue=self.site_names.logical_name(binding.queue))

    # The methods below change bindings, peers, links and routes.

    def bind(self, declaration: BindingDeclaration, *, replaces: bool = False) -> None:
        """Bind a queue. If `replaces`, an existing binding's arguments may be replaced. Raises `BadBinding`."""
        queue = self.site_names.physical_name(declaration.queue)
        feeds_route = queue in find_feeding_queues(self.link_service.registry())
        destination = Destination(
            queue=queue, url=self.link_service.provisioner.queues.url(queue), feeds_route=feeds_route
        )
        binding = declaration.binding(queue=queue)
        self.link_service.exchanges.change(add_binding(binding, destination, replaces=replaces))

    def add_peer(self, peer: Peer) -> None:
        """Add a peer or update its permissions. Raises `BadRoute` if the peer is invalid."""
        service = self.link_service
        here, accounts, stages = service.here.tag, service.peer_accounts, service.peer_stages

        def add(known: dict[str, Peer]) -> dict[str, Peer]:
            check_peer(peer, here=here, accounts=accounts, stages=stages, existing=known.values())
            tags = known[peer.tag].tags if peer.tag in known else ()
            return {**known, peer.tag: replace(peer, tags=tuple(dict.fromkeys((*peer.tags, *tags)))[-MAX_RULES:])}

        self.link_service.known_peers.change(add)
        self.enable_peer_mappings()
        # Routes that the peer may no longer pull are closed at once, instead of at the peer's next hello.
        registry = self.link_service.registry()
        served = [record.bridge for record in registry.bridges.values() if record.served and not record.closing]
        served = [bridge for bridge in served if registry.links[bridge.link].link.peer == peer.tag]
        gone = self.link_service.list_refusals(peer, served)
        self.link_service.advance([transitions.close_bridge(name) for name in gone], ticks=False)

    def record_route_tag(self, bridge: Bridge) -> None:
        """Add an incoming route's tag to the tags of its peer. The oldest unused tags expire. Raises `BadRoute`."""
        registry = self.link_service.registry()
        record, tag = registry.links.get(bridge.link), bridge.tag
        if bridge.src_is_local or tag is None or record is None:
            return
        links = {name for name, other in registry.links.items() if other.link.peer == record.link.peer}
        others = [other.bridge for name, other in registry.bridges.items() if name != bridge.name]
        used = {tag, *(other.tag for other in others if other.link in links and not other.src_is_local)} - {None}
        if len(used) > MAX_RULES:
            raise BadRoute(f"{record.link.peer}: its routes here have {len(used)} tags, more than {MAX_RULES}")

        def record_tag(known: dict[str, Peer]) -> dict[str, Peer]:
            peer = known.get(record.link.peer)
            if peer is None or tag in {peer.tag, *peer.tags}:
                return known
            tags = (*peer.tags, tag)
            expired = [other for other in tags if other not in used][: max(len(tags) - MAX_RULES, 0)]
            return {**known, peer.tag: replace(peer, tags=tuple(other for other in tags if other not in expired))}

        self.link_service.known_peers.change(record_tag)

    def remove_peer(self, tag: str) -> None:
        """Remove a peer. Raises `NotFound`, or `BadRoute` if links of this site lead to the peer."""
        links = self.link_service.registry().links
        if tag not in self.link_service.known_peers.value():
            raise NotFound(f"no such peer: {tag}")
        to_peer = [name for name, record in sorted(links.items()) if record.link.peer == tag]
        own_links = [name for name in to_peer if not links[name].served]
        if own_links:
            raise BadRoute(f"{tag}: links of this site go there: {', '.join(own_links)}")
        self.link_service.known_peers.change(
            lambda known: {other_tag: peer for other_tag, peer in known.items() if other_tag != tag}
        )
        self.link_service.advance([transitions.update_link(name, LinkEvent.CLOSE) for name in to_peer])

    def add_link(self, link: Link, *, declared: bool = False) -> None:
        """Add a link. Raises `BadRoute` if the link is invalid."""
        change = transitions.add_link(link, declared=declared)
        # The change is tried first, so that errors of the link itself are raised before an unknown peer is.
        transitions.apply(self.link_service.registry(), change, now_ms=0, jitter=0.0)
        if link.peer not in self.link_service.known_peers.value():
            raise BadRoute(f"{link.name}: {describe_unknown_peer(link.peer)}")
        save_changes = self.link_service.save_changes if declared else self.link_service.advance
        save_changes([change])

    def command_link(self, name: str, update: Command | LinkEvent) -> None:
        """Send a command or an event to a link. Raises `NotFound` if the link is missing."""
        if name not in self.link_service.registry().links:
            raise NotFound(f"no such link: {name}")
        self.link_service.advance([transitions.update_link(name, update)])

    def change_bridge(self, bridge: Bridge) -> None:
        """Change a route's options in place. Raises `NotFound`, or `BadRoute` if the options are invalid."""
        if self.record(bridge.name).declared:
            raise BadRoute(f"{bridge.name}: it is declared in cdk.json: change it there, and deploy")
        self.save_route(bridge, transitions.change_bridge(bridge))

    def save_route(self, bridge: Bridge, change: transitions.Change, *, advances: bool = True) -> None:
        """Check and save a new or changed route, and its tag. Raises `BadRoute`, `BadBinding` for an invalid route."""
        reason = None if bridge.filter is UNSET else self.link_service.find_filter_problem(bridge.filter)
        if bridge.src_is_local:  # the source site checks pulled routes
            if bridge.src_is_queue:
                self.site_names.find_readable_queue(bridge.src)
            reason = reason or find_key_problem(bridge, self.link_service.exchange_types().get(bridge.src))
        if reason is not None:
            raise BadRoute(f"{bridge.name}: {reason}")
        self.record_route_tag(bridge)
        (self.link_service.advance if advances else self.link_service.save_changes)([change])

    def close_bridge(self, operation: operations.CloseBridge) -> None:
        """Close a route, and if requested its empty link. Raises `NotFound` if the route is missing."""
        link = self.record(operation.name).bridge.link
        registry = self.link_service.advance([transitions.close_bridge(operation.name)])
        if operation.del_empty_link and all(record.closing for record in registry.list_bridges(link)):
            self.link_service.advance([transitions.update_link(link, LinkEvent.CLOSE)])

    def command_bridge(self, operation: operations.CommandBridge) -> None:
        """Send a command to a route. Raises `NotFound`, or `BadRoute` if the command has to be run at the peer."""
        record = self.record(operation.name)
        if record.served:
            raise BadRoute(f"{operation.name}: its destination site requested it: {operation.command} it there")
        if operation.command is Command.DRAIN and not record.bridge.src_is_local:
            raise BadRoute(f"{operation.name}: it is pulled: drain its link, or the route at its source")
        is_links = operation.command is Command.RETRY
        link = transitions.update_link(record.bridge.link, operation.command)
        self.link_service.advance([link if is_links else transitions.command_bridge(operation.name, operation.command)])

    def record(self, name: str) -> BridgeRecord:
        """Return the record of a route. Raises `NotFound` if the route is missing."""
        record = self.link_service.registry().bridges.get(name)
        if record is None:
            raise NotFound(f"no such route: {name}")
        return record

    # The methods below apply the deployment's declaration.

    def sweep(self) -> None:
        """Apply the declaration, repair drift, and run due actions. Raises one `BadConfiguration` of all errors."""
        faults: list[BadConfiguration] = []
        try:
            faults += self.declare()
        finally:  # Invalid declarations don't prevent the rest of the sweep.
            try:
                self.drift_repair.sweep()
            finally:
                self.link_service.advance()
                self.link_service.exchanges.save_snapshot()
        if faults:
            raise BadConfiguration("; ".join(map(str, faults)))

    def declare(self) -> Sequence[BadConfiguration]:
        """Create declared objects, and remove objects no longer declared. Returns the errors of single objects."""
        content, version = self.applied_document.load()
        before, known = Declared() if content is None else DECLARED.from_text(content), self.link_service.known_peers
        if peers := known.value():  # A deployment may have disabled the triggers.
            self.enable_peer_mappings()
        declared_peers = [peer for peer in peers.values() if peer.declared]
        declared = index_by_key((*self.peers, *self.declared.entries))
        for key, entry in reversed(index_by_key((*declared_peers, *before.entries)).items()):  # routes before links
            kept = declared.get(key)
            can_stay = entry.can_become(kept) if isinstance(entry, Bridge) and isinstance(kept, Bridge) else kept
            if not can_stay or (isinstance(entry, Link) and entry != kept):
                with suppress(BadConfiguration):  # an object that is removed already or still used stays as it is
                    self.apply(make_delete_operation(entry))
        faults, watch = list[BadConfiguration](), self.drift_repair.watch()
        for entry in declared.values():
            try:
                self.create_declared(entry, peers, watch)
            except BadConfiguration as fault:
                faults.append(fault)
        if before != self.declared:
            self.applied_document.save(DECLARED.text(self.declared).encode(), after=version)
        return faults

    def create_declared(self, entry: Entry, peers: Mapping[str, Peer], watch: SiteWatch) -> None:
        """Create a declared object, or change it in place. Raises a `BadConfiguration` if the object is invalid."""
        match entry:
            case Peer() if entry != peers.get(entry.tag):
                self.add_peer(entry)
            case Exchange():
                self.link_service.exchanges.change(add_exchange(entry))
            case BindingDeclaration():
                # The sweep removed this binding when its queue was deleted. It is restored once the queue exists again.
                if not watch.find_queue(self.site_names.physical_name(entry.queue)).unbound:
                    self.bind(entry)
            case Link():
                self.add_link(entry, declared=True)
            case Bridge():
                existing = self.link_service.registry().bridges.get(entry.name)
                if existing is not None and (existing.closing or existing.bridge == entry):
                    return  # A later sweep creates this route, when the closing one is removed.
                changes = existing is not None and existing.bridge.can_become(entry)
                change = transitions.change_bridge(entry) if changes else transitions.add_bridge(entry, declared=True)
                self.save_route(entry, change, advances=False)
