"""What operators, ticks and the bridge function ask of the links function, and what it answers. Pure."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, cast

from msgspec import Meta

from sluice.codec import Struct, shared_fields
from sluice.federation.declared import BindingDeclaration, Declared
from sluice.federation.links.links import Address, Bridge, Introduction, Link
from sluice.federation.links.peers import Peer
from sluice.federation.links.states import Command, LinkState, LinkStatus
from sluice.federation.links.watch import Mends
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.federation.matching.typed_values import StoredValue
from sluice.operations import Operation, R

MAX_REPORTED = 1_000  # queues

# Answers


class LinkView(Link, frozen=True, kw_only=True):
    """A link and how it is. `served` where the peer declared it, and not this site."""

    served: bool
    declared: bool
    status: LinkStatus
    exchanges: Mapping[str, str]
    address: Address | None

    @property
    def is_ending(self) -> bool:
        """Whether no route can be added to it any more."""
        return self.status.state is LinkState.CLOSING

    def declared_link(self) -> Link:
        """Return the link itself."""
        return Link(**shared_fields(self, Link))


class BridgeView(Bridge, frozen=True, kw_only=True):
    """A bridge and how it is. `state` is a link's, or what the source said; `reads` is its queue, at this site.

    `mends` are of what it has at this site.
    """

    served: bool
    declared: bool
    state: str
    error: str | None
    reads: str | None
    last_forward_ms: int | None
    mends: Mends = Mends()

    def declared_bridge(self) -> Bridge:
        """Return the bridge itself."""
        return Bridge(**shared_fields(self, Bridge))


class SiteView(Struct, frozen=True, kw_only=True):
    """What a site says of itself. `bindings` are counted; `feeds` are those of queues that its queue routes read.

    `declared` is what the deployment declares, which isn't to be changed at run time.
    """

    address: Introduction
    peer_accounts: frozenset[str]
    peers: tuple[Peer, ...]
    exchanges: tuple[Exchange, ...]
    bindings: int
    feeds: tuple[BindingDeclaration, ...]
    links: tuple[LinkView, ...]
    bridges: tuple[BridgeView, ...]
    declared: Declared = Declared()

    @property
    def tag(self) -> str:
        """The site's."""
        return self.address.tag

    def peer_tagged(self, tag: str) -> Peer | None:
        """None where there is none."""
        return next((each for each in self.peers if each.tag == tag), None)

    def link_named(self, name: str) -> LinkView | None:
        """None where there is none."""
        return next((each for each in self.links if each.name == name), None)

    def links_to(self, peer: str) -> list[LinkView]:
        """Those that were declared here and aren't about to go."""
        return [each for each in self.links if each.peer == peer and not each.served and not each.is_ending]

    def bridge_named(self, name: str) -> BridgeView | None:
        """None where there is none."""
        return next((each for each in self.bridges if each.name == name), None)


class ExchangesView(Struct, frozen=True, kw_only=True):
    """A site's exchanges, in the order in which they were made."""

    exchanges: tuple[Exchange, ...]


class BindingsView(Struct, frozen=True, kw_only=True):
    """Bindings, as of this version of all of them."""

    version: int
    bindings: tuple[BindingDeclaration, ...]


class QueueView(Struct, frozen=True, kw_only=True):
    """A queue that may be bound: the names that people and SQS know it by, its bindings, and the routes that read it.

    `deployed` where the stacks made it, or took it over.
    """

    name: str
    queue: str
    deployed: bool
    bindings: int
    routes: tuple[str, ...]


class QueuesView(Struct, frozen=True, kw_only=True):
    """The queues that a site knows of: deployed, bound or read. Others may be bound whose names match a pattern.

    `kms_key_arn` is of the key to make them with, None for SQS's own.
    """

    address: Address
    patterns: tuple[str, ...]
    kms_key_arn: str | None = None
    queues: tuple[QueueView, ...]

    def named(self, name: str) -> QueueView | None:
        """Find the queue that people, or SQS, know by this name; None where the site knows of none."""
        return next((each for each in self.queues if name in {each.name, each.queue}), None)


class WayView(Struct, frozen=True, kw_only=True):
    """How messages of an exchange reach the site `origin`, and what that wants: how many bindings, and some keys."""

    exchange: str
    origin: str
    route: str
    path: tuple[str, ...]
    active: bool
    outages: int
    wants: int
    keys: tuple[str, ...]


class WaysView(Struct, frozen=True, kw_only=True):
    """Who wants what of a site, by which way: the best one of each origin first."""

    ways: tuple[WayView, ...]


class Redriven(Struct, frozen=True, kw_only=True):
    """How many dead letters are back in their queue."""

    redriven: int


# What may be asked


class ShowSite(Operation[SiteView], frozen=True, kw_only=True, tag="site"):
    """What the site has, and how it is."""


class ListExchanges(Operation[ExchangesView], frozen=True, kw_only=True, tag="exchanges"):
    """Only them: it costs one read, where the whole site costs several."""


class ListQueues(Operation[QueuesView], frozen=True, kw_only=True, tag="queues"):
    """Of those that may be bound, the ones that the site knows of."""


class ListBindings(Operation[BindingsView], frozen=True, kw_only=True, tag="bindings"):
    """Of one exchange, or of all."""

    exchange: str | None = None


class ListWays(Operation[WaysView], frozen=True, kw_only=True, tag="ways"):
    """Who wants what of the site, over its dynamic routes."""


class Redrive(Operation[Redriven], frozen=True, kw_only=True, tag="redrive"):
    """Puts a route's dead letters back into its queue."""

    name: str


class _Change(Operation[R], frozen=True, kw_only=True):
    changes: ClassVar[bool] = True


class AddExchange(_Change[Exchange], frozen=True, kw_only=True, tag="exchange_add"):
    """Makes an exchange; the same one once more changes nothing."""

    name: str
    type: ExchangeType
    alternate: str | None = None


class DeleteExchange(_Change[None], frozen=True, kw_only=True, tag="exchange_del"):
    """Takes an exchange away that nothing is bound to."""

    name: str


class BindQueue(_Change[BindingDeclaration], frozen=True, kw_only=True, tag="bind", omit_defaults=True):
    """Binds a queue; the same binding once more changes nothing.

    One with other arguments is refused, but where it `replaces`: then there is no moment without a binding. Defaults
    aren't said: so a site that doesn't know `replaces` yet takes all else.
    """

    exchange: str
    queue: str
    key: str = ""
    arguments: Mapping[str, StoredValue] = {}
    replaces: bool = False

    @classmethod
    def to(cls, binding: BindingDeclaration, *, replaces: bool = False) -> "BindQueue":
        """Return what asks for the binding."""
        return cls(**shared_fields(binding, cls), replaces=replaces)

    def declaration(self) -> BindingDeclaration:
        """Return the binding that is asked for."""
        return BindingDeclaration(**shared_fields(self, BindingDeclaration))


class UnbindQueue(_Change[None], frozen=True, kw_only=True, tag="unbind"):
    """Takes a binding away."""

    exchange: str
    queue: str
    key: str = ""


class AddPeer(_Change[Peer], frozen=True, kw_only=True, tag="peer_add"):
    """Declares a peer, or what it may from now on; the same one once more changes nothing."""

    peer: Peer


class DeletePeer(_Change[None], frozen=True, kw_only=True, tag="peer_del"):
    """Lets a site be no peer any more; what it asked for goes, and what its queues hold goes over first."""

    name: str


class AddLink(_Change[Link], frozen=True, kw_only=True, tag="link_add"):
    """Declares a link; the same one once more changes nothing."""

    link: Link


class CloseLink(_Change[None], frozen=True, kw_only=True, tag="link_del"):
    """Closes a link, and with it its routes; what these hold goes over first."""

    name: str


class TellLink(_Change[None], frozen=True, kw_only=True, tag="link_tell"):
    """Pauses a link, drains it, lets it go on, or tries it now."""

    name: str
    what: Command


class AddBridge(_Change[Bridge], frozen=True, kw_only=True, tag="bridge_add"):
    """Declares a route; the same one once more changes nothing."""

    bridge: Bridge


class ChangeBridge(_Change[Bridge], frozen=True, kw_only=True, tag="bridge_change"):
    """Gives a route that is there other options; its way and its queue stay, and what is published goes on into it."""

    bridge: Bridge


class CloseBridge(_Change[None], frozen=True, kw_only=True, tag="bridge_del"):
    """Takes a route away; what its queue holds goes over first. `del_empty_link` takes the link with its last one."""

    name: str
    del_empty_link: bool = False


class TellBridge(_Change[None], frozen=True, kw_only=True, tag="bridge_tell"):
    """Pauses a route, drains it, lets it go on, or tries its link now."""

    name: str
    what: Command


class ReportOutage(_Change[None], frozen=True, kw_only=True, tag="outage"):
    """Of a link, by whoever forwards over it, at `at_ms`. `refused` where somebody has to put something right."""

    link: str
    error: str
    refused: bool = False
    at_ms: int | None = None


class ReportGone(_Change[None], frozen=True, kw_only=True, tag="gone"):
    """Of bound queues that didn't exist as they were sent to, by the exchange function.

    `copies` are by queue: so many became dead letters so, which go back where the queue is there again.
    """

    copies: Annotated[Mapping[str, Annotated[int, Meta(ge=0)]], Meta(max_length=MAX_REPORTED)]


class LookAgain(_Change[None], frozen=True, kw_only=True, tag="tick"):
    """Does what is due by now."""


class SweepSite(_Change[None], frozen=True, kw_only=True, tag="sweep"):
    """Makes what is declared and missing, looks after what routes and bindings have, and does what is due."""


FederationOperation = (
    ShowSite | ListExchanges | ListQueues | ListBindings | ListWays | Redrive | AddExchange | DeleteExchange
    | BindQueue | UnbindQueue | AddPeer | DeletePeer | AddLink | CloseLink | TellLink | AddBridge | ChangeBridge
    | CloseBridge | TellBridge | ReportOutage | ReportGone | LookAgain | SweepSite
)  # fmt: skip
# A union is no type to a type checker.
OPERATIONS = cast("type[FederationOperation]", FederationOperation)
