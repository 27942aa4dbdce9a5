"""Operations of the links function and their results. Pure."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, cast

from msgspec import UNSET, Meta, UnsetType

from sluice.codec import Struct, pick_shared_fields
from sluice.federation.declared import BindingDeclaration, Declared
from sluice.federation.links.links import Address, Bridge, Introduction, Link
from sluice.federation.links.peers import Peer
from sluice.federation.links.states import Command, LinkStatus
from sluice.federation.links.watch import Repairs
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.federation.matching.typed_values import StoredValue
from sluice.operations import Operation, R

MAX_REPORTED_QUEUES = 1_000  # one `ReportFailingQueues` may report at most this many missing queues


class LinkView(Link, frozen=True, kw_only=True):
    """A link with its status. `served` is true if the peer declared the link."""

    served: bool
    declared: bool
    status: LinkStatus
    exchanges: Mapping[str, str]
    address: Address | None

    def to_link(self) -> Link:
        """Return the link without its status."""
        return Link(**pick_shared_fields(self, Link))


class BridgeView(Bridge, frozen=True, kw_only=True):
    """A bridge with its status. `state` is a link state, or the state that the source site reports.

    `served` is true if the peer requested the bridge. `reads` is the bridge's queue at this site. `repairs` counts the
    repairs of the bridge's resources at this site.
    """

    served: bool
    declared: bool
    state: str
    error: str | None
    reads: str | None
    last_forward_ms: int | None
    repairs: Repairs = Repairs()

    def to_bridge(self) -> Bridge:
        """Return the bridge without its status."""
        return Bridge(**pick_shared_fields(self, Bridge))


class SiteView(Struct, frozen=True, kw_only=True):
    """A site's objects and their status. `bindings` is the number of bindings.

    `feeds` has the bindings of queues that queue routes read. `declared` is the deployment's declaration, which can't
    be changed at run time. `refusing` has the queues that refused messages in the last minutes, with SQS's reasons.
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
    refusing: Mapping[str, str] | UnsetType = UNSET

    @property
    def tag(self) -> str:
        """The tag of the site."""
        return self.address.tag

    def find_peer(self, tag: str) -> Peer | None:
        """Return the peer with this tag; None if the site has no such peer."""
        return next((peer for peer in self.peers if peer.tag == tag), None)

    def find_link(self, name: str) -> LinkView | None:
        """Return the link with this name; None if the site has no such link."""
        return next((link for link in self.links if link.name == name), None)

    def links_to(self, peer: str) -> list[LinkView]:
        """Return the links to a peer that were declared at this site and aren't closing."""
        return [link for link in self.links if link.peer == peer and not link.served and not link.status.is_ending]

    def find_bridge(self, name: str) -> BridgeView | None:
        """Return the bridge with this name; None if the site has no such bridge."""
        return next((bridge for bridge in self.bridges if bridge.name == name), None)


class BindingsView(Struct, frozen=True, kw_only=True):
    """The bindings of a site, or of one exchange, at a version."""

    version: int
    bindings: tuple[BindingDeclaration, ...]


class QueueView(Struct, frozen=True, kw_only=True):
    """A queue that may be bound, with its logical and SQS names, its number of bindings, and the routes that read it.

    `deployed` is true if a stack created or adopted the queue.
    """

    name: str
    queue: str
    deployed: bool
    bindings: int
    routes: tuple[str, ...]


class QueuesView(Struct, frozen=True, kw_only=True):
    """A site's queues: deployed, bound or read by routes. Queues whose names match `patterns` can be bound, too.

    `kms_key_arn` is the key for new queues; None selects SQS-managed encryption.
    """

    address: Address
    patterns: tuple[str, ...]
    kms_key_arn: str | None = None
    queues: tuple[QueueView, ...]

    def find_name_problem(self, queue: str) -> str | None:
        """Return why the site may not use a queue with this SQS name; None if the site may use the queue."""
        if any(fnmatchcase(queue, pattern) for pattern in self.patterns):
            return None
        patterns = ", ".join(self.patterns) or "none"
        return f"{queue}: {self.address.tag} may not use a queue of this name; federation.queue_names has {patterns}"

    def find_queue(self, name: str) -> QueueView | None:
        """Find a queue by its logical or SQS name. Returns None if the site has no such queue."""
        return next((queue for queue in self.queues if name in {queue.name, queue.queue}), None)


class PathView(Struct, frozen=True, kw_only=True):
    """A path for an exchange's messages to the site `origin`. Counts the origin's bindings and lists some keys."""

    exchange: str
    origin: str
    route: str
    path: tuple[str, ...]
    active: bool
    outages: int
    bindings: int
    keys: tuple[str, ...]


class PathsView(Struct, frozen=True, kw_only=True):
    """The paths of dynamic routes. For each origin, the best path comes first."""

    paths: tuple[PathView, ...]


class RedriveResult(Struct, frozen=True, kw_only=True):
    """The result of a redrive: the number of dead letters that were redriven."""

    redriven: int


# The classes below are the operations of the links function.


class ShowSite(Operation[SiteView], frozen=True, kw_only=True, tag="site"):
    """Shows the site's objects and their status."""

    only_reads = True


class ListQueues(Operation[QueuesView], frozen=True, kw_only=True, tag="queues"):
    """Lists the site's queues."""

    only_reads = True


class ListBindings(Operation[BindingsView], frozen=True, kw_only=True, tag="bindings"):
    """Lists the bindings of one exchange, or of all exchanges."""

    only_reads = True
    exchange: str | None = None


class ListPaths(Operation[PathsView], frozen=True, kw_only=True, tag="paths"):
    """Lists the paths of dynamic routes. For each origin, the best path comes first."""

    only_reads = True


class Redrive(Operation[RedriveResult], frozen=True, kw_only=True, tag="redrive"):
    """Redrives a route's dead letters into the route's queue."""

    name: str


class _Change(Operation[R], frozen=True, kw_only=True):
    changes: ClassVar[bool] = True


class AddExchange(_Change[Exchange], frozen=True, kw_only=True, tag="exchange_add"):
    """Adds an exchange. Idempotent."""

    name: str
    type: ExchangeType
    alternate: str | None = None


class DeleteExchange(_Change[None], frozen=True, kw_only=True, tag="exchange_del"):
    """Deletes an exchange that has no bindings."""

    name: str


class BindQueue(_Change[BindingDeclaration], frozen=True, kw_only=True, tag="bind", omit_defaults=True):
    """Binds a queue. Idempotent.

    If the binding exists with other arguments, they are replaced if `replaces` is true; else the operation is refused.
    Defaults are omitted on the wire, so sites of older releases accept operations without `replaces`.
    """

    exchange: str
    queue: str
    key: str = ""
    arguments: Mapping[str, StoredValue] = {}
    replaces: bool = False

    @classmethod
    def from_declaration(cls, binding: BindingDeclaration, *, replaces: bool = False) -> "BindQueue":
        """Return the operation that adds the binding."""
        return cls(**pick_shared_fields(binding, cls), replaces=replaces)

    def declaration(self) -> BindingDeclaration:
        """Return the binding to add."""
        return BindingDeclaration(**pick_shared_fields(self, BindingDeclaration))


class UnbindQueue(_Change[None], frozen=True, kw_only=True, tag="unbind"):
    """Removes a queue's binding."""

    exchange: str
    queue: str
    key: str = ""


class AddPeer(_Change[Peer], frozen=True, kw_only=True, tag="peer_add"):
    """Adds a peer or updates its permissions. Idempotent."""

    peer: Peer


class DeletePeer(_Change[None], frozen=True, kw_only=True, tag="peer_del"):
    """Removes a peer. The peer's routes are closed after the messages in their queues have been forwarded."""

    name: str


class AddLink(_Change[Link], frozen=True, kw_only=True, tag="link_add"):
    """Adds a link. Idempotent."""

    link: Link


class CloseLink(_Change[None], frozen=True, kw_only=True, tag="link_del", omit_defaults=True):
    """Closes a link and its routes, after the messages in their queues have been forwarded.

    `force` removes a link without routes even if the peer can't be informed.
    """

    name: str
    force: bool = False


class CommandLink(_Change[None], frozen=True, kw_only=True, tag="link_tell"):
    """Pauses, drains, resumes or retries a link."""

    name: str
    command: Command


class AddBridge(_Change[Bridge], frozen=True, kw_only=True, tag="bridge_add"):
    """Adds a route. Idempotent."""

    bridge: Bridge


class ChangeBridge(_Change[Bridge], frozen=True, kw_only=True, tag="bridge_change"):
    """Changes a route's options in place. The route's ends and queue stay, so no published message is lost."""

    bridge: Bridge


class CloseBridge(_Change[None], frozen=True, kw_only=True, tag="bridge_del"):
    """Closes a route after its queue's messages have been forwarded. `del_empty_link` closes a link without routes."""

    name: str
    del_empty_link: bool = False


class CommandBridge(_Change[None], frozen=True, kw_only=True, tag="bridge_tell"):
    """Pauses, drains or resumes a route, or retries its link."""

    name: str
    command: Command


class ReportOutage(_Change[None], frozen=True, kw_only=True, tag="outage"):
    """Reports that forwarding over a link failed at `at_ms`. `refused` means that an operator has to fix the cause."""

    link: str
    error: str
    refused: bool = False
    at_ms: int | None = None


class ReportFailingQueues(_Change[None], frozen=True, kw_only=True, tag="gone"):
    """Reports bound queues that didn't exist, or refused messages, when the exchange function sent to them.

    `copies` has the number of new dead letters for each missing queue. These are redriven once the queue exists again.
    `refusals` has SQS's reason for each queue that refuses messages.
    """

    copies: Annotated[Mapping[str, Annotated[int, Meta(ge=0)]], Meta(max_length=MAX_REPORTED_QUEUES)] = {}
    refusals: Annotated[Mapping[str, str], Meta(max_length=MAX_REPORTED_QUEUES)] | UnsetType = UNSET


class Tick(_Change[None], frozen=True, kw_only=True, tag="tick"):
    """Runs the due actions, and checks missing queues again."""


class SweepSite(_Change[None], frozen=True, kw_only=True, tag="sweep"):
    """Applies the declaration, repairs the resources of routes and bindings, and runs the due actions."""


FederationOperation = (
    ShowSite | ListQueues | ListBindings | ListPaths | Redrive | AddExchange | DeleteExchange
    | BindQueue | UnbindQueue | AddPeer | DeletePeer | AddLink | CloseLink | CommandLink | AddBridge | ChangeBridge
    | CloseBridge | CommandBridge | ReportOutage | ReportFailingQueues | Tick | SweepSite
)  # fmt: skip
# Type checkers don't accept a union as a type argument.
OPERATIONS = cast("type[FederationOperation]", FederationOperation)
