"""What sites are, as they say it themselves, put into a topology file's words. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from sluice.federation.bridge_works import BRIDGE_QUEUE_PREFIX
from sluice.federation.declared import BindingDeclaration
from sluice.federation.links.links import Bridge, Link
from sluice.federation.links.peers import Peer
from sluice.federation.links.states import LinkState
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange
from sluice.federation.operations import QueuesView, SiteView
from sluice.federation.topology.desired import DesiredLink, DesiredPeer, DesiredSite, DesiredTopology
from sluice.federation.topology.entries import LINK, ROUTE, Entries, Key, by_key, key_of


@dataclass(frozen=True)
class SiteState:
    """A site as it is now. `at` is its name for commands."""

    at: str
    view: SiteView
    all_bindings: tuple[BindingDeclaration, ...]
    queues: QueuesView

    @cached_property
    def entries(self) -> Entries:
        """All of the site's own that isn't about to go: what peers asked for is theirs, and goes with that."""
        view = self.view
        return by_key(
            [
                *(
                    replace(each, tags=(), declared=False) for each in view.peers
                ),  # its routes' tags are noted by itself
                *(each for each in view.exchanges if each not in STANDARD_EXCHANGES),
                *self.bindings,
                *(each.declared_link() for each in view.links if not each.served and not each.is_ending),
                *(
                    each.declared_bridge()
                    for each in view.bridges
                    if not each.served and each.state != LinkState.CLOSING
                ),
            ]
        )

    @cached_property
    def kept(self) -> Entries:
        """The same without links that are there for routes, and have none: they go by themselves."""
        used = {each.link for each in self.entries.values() if isinstance(each, Bridge)}
        passing = [each for each in self.entries.values() if isinstance(each, Link) and not each.durable]
        gone = {key_of(each) for each in passing if each.name not in used}
        return {key: each for key, each in self.entries.items() if key not in gone}

    @property
    def bindings(self) -> list[BindingDeclaration]:
        """Those of queues that no exchange route has for its own."""
        of_routes = {each.reads for each in self.view.bridges if each.src_is_local and not each.src_is_queue}
        # A queue that is being made anew is known by its name alone.
        users = (each for each in self.all_bindings if not each.queue.startswith(BRIDGE_QUEUE_PREFIX))
        return [each for each in users if each.queue not in of_routes]

    @cached_property
    def declared(self) -> Entries:
        """What the site's deployment declares."""
        view = self.view
        bindings = (replace(each, queue=self.shown_queue(each.queue)) for each in view.declared.bindings)
        return by_key(
            [
                *(each for each in view.peers if each.declared),
                *view.declared.exchanges,
                *bindings,
                *view.declared.links,
                *view.declared.routes,
            ]
        )

    def shown_queue(self, queue: str) -> str:
        """Return the name that people know a queue by."""
        known = self.queues.named(queue)
        return queue if known is None else known.name


def closing(view: SiteView) -> list[Key]:
    """Return what is about to go, of the site's own and of what peers asked for."""
    routes = [(ROUTE, each.name) for each in view.bridges if each.state == LinkState.CLOSING]
    return [*routes, *((LINK, each.name) for each in view.links if each.is_ending)]


def idle(view: SiteView, routes: Iterable[str]) -> list[str]:
    """Return which of these routes don't carry messages, with their states. One that is paused is to carry none."""
    found = [(name, view.bridge_named(name)) for name in routes]
    resting = {LinkState.OPERATIONAL, LinkState.PAUSED}
    return [
        f"{name}: {'it is gone' if shown is None else shown.state}"
        for name, shown in found
        if shown is None or shown.state not in resting
    ]


def described(states: Mapping[str, SiteState]) -> DesiredTopology:
    """Return the file that says what these sites are, by their tags, in an order that is the same each time."""
    return DesiredTopology(sites={tag: _described(states[tag], states) for tag in sorted(states)})


def _described(state: SiteState, states: Mapping[str, SiteState]) -> DesiredSite:
    addresses = {tag: each.view.address for tag, each in states.items()}
    here = state.view.address
    listed = [entry for _, entry in sorted(state.kept.items())]
    return DesiredSite(
        at=state.at,
        peers=tuple(DesiredPeer.of(each, address=addresses.get(each.tag)) for each in listed if isinstance(each, Peer)),
        exchanges=tuple(each for each in listed if isinstance(each, Exchange)),
        bindings=tuple(each for each in listed if isinstance(each, BindingDeclaration)),
        links=tuple(
            DesiredLink.of(each, here=here, peer=addresses.get(each.peer)) for each in listed if isinstance(each, Link)
        ),
        routes=tuple(each for each in listed if isinstance(each, Bridge)),
    )
