"""Applies what operators, ticks and the bridge function ask of a site: each operation is handed to what it is about.

The command line is one asker; a request from anywhere else is checked as strictly.
"""

import msgspec

from sluice.errors import BadRoute
from sluice.federation.declarations import Declarations
from sluice.federation.declared import BindingDeclaration
from sluice.federation.exchange_store import with_exchange, without_binding, without_exchange
from sluice.federation.link_operations import LinkOperations
from sluice.federation.links.states import AccessRefused, LinkEvent, Unreachable
from sluice.federation.links.transitions import LinkTold
from sluice.federation.matching.exchanges import Exchange
from sluice.federation.operations import (
    AddBridge,
    AddExchange,
    AddLink,
    AddPeer,
    BindQueue,
    ChangeBridge,
    CloseBridge,
    CloseLink,
    DeleteExchange,
    DeletePeer,
    FederationOperation,
    ListBindings,
    ListExchanges,
    ListQueues,
    ListWays,
    LookAgain,
    Redrive,
    Redriven,
    ReportGone,
    ReportOutage,
    ShowSite,
    SweepSite,
    TellBridge,
    TellLink,
    UnbindQueue,
)
from sluice.federation.site_views import SiteViews
from sluice.federation.upkeep import Upkeep


class Administration(msgspec.Struct, frozen=True, kw_only=True):
    """One invocation's."""

    links: LinkOperations
    views: SiteViews
    declarations: Declarations
    upkeep: Upkeep

    def perform(self, operation: FederationOperation) -> object:  # noqa: C901, PLR0911, PLR0912 - one case an operation
        """Do what is asked; the operation's result.

        Raises a `BadConfiguration` for what the asker did wrong, `QueueGone` for a queue that isn't there: nothing was
        changed then. Raises what the registrar raises.
        """
        links, registrar = self.links, self.links.registrar
        match operation:
            case ShowSite():
                return self.views.site()
            case ListExchanges():
                return self.views.exchanges()
            case ListQueues():
                return self.views.queues()
            case ListBindings(exchange=name):
                return self.views.bindings(name)
            case ListWays():
                return self.views.dynamic_ways()
            case Redrive(name=name):
                return self.redrive(name)
            case AddExchange(name=name, type=type_, alternate=alternate):
                exchange = Exchange(name=name, type=type_, alternate=alternate)
                registrar.exchanges.change(with_exchange(exchange))
                return exchange
            case DeleteExchange(name=name):
                registrar.exchanges.change(without_exchange(name))
            case BindQueue():
                declaration = operation.declaration()
                queue = links.names.physical(declaration.queue)
                registrar.works.queues.count(queue)  # it has to be there
                links.bind(declaration, replaces=operation.replaces)
                return BindingDeclaration.of(declaration.binding(queue=queue))
            case UnbindQueue(exchange=name, queue=queue, key=key):
                registrar.exchanges.change(without_binding((name, links.names.physical(queue), key)))
            case AddPeer(peer=peer):
                links.add_peer(peer)
                return peer
            case DeletePeer(name=name):
                links.remove_peer(name)
            case AddLink(link=link):
                links.add_link(link, declared=False)
                return link
            case CloseLink(name=name):
                links.tell_link(name, LinkEvent.CLOSE)
            case TellLink(name=name, what=command):
                links.tell_link(name, command)
            case AddBridge(bridge=bridge):
                links.add_bridge(bridge)
                return bridge
            case ChangeBridge(bridge=bridge):
                links.change_bridge(bridge)
                return bridge
            case CloseBridge():
                links.close_bridge(operation)
            case TellBridge():
                links.tell_bridge(operation)
            case ReportOutage(link=name, error=error, refused=refused, at_ms=at_ms):
                news = AccessRefused(error, at_ms) if refused else Unreachable(error, at_ms)
                registrar.advance([LinkTold(name, news)], ticks=False)
            case ReportGone(copies=copies):
                self.upkeep.report(copies)
            case LookAgain():
                registrar.advance()  # first: looks may take all the time there is
                self.upkeep.look_again()
                registrar.advance(ticks=False)
            case SweepSite():
                self.declarations.sweep()
        return None

    def redrive(self, name: str) -> Redriven:
        """Put a route's dead letters back. Raises `NoSuch`, or `BadRoute` for one that begins elsewhere."""
        queue = self.links.record(name).queue
        if queue is None:
            raise BadRoute(f"{name}: its dead letters are at its source: redrive it there")
        return Redriven(redriven=self.upkeep.redrive(queue))
