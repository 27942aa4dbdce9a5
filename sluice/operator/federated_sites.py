"""Sites of a federation, asked by name: one of them, or all that links lead to."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from sluice.aws.deployment import NotUsable
from sluice.errors import BadConfiguration, Malformed, SluiceError
from sluice.federation.map.topology import MappedSite, Topology
from sluice.federation.operations import ListExchanges, ListWays, ShowSite, SiteView, WayView
from sluice.operations import Operation, R
from sluice.operator.functions import FEDERATION, ControlClient
from sluice.operator.site_names import SiteName
from sluice.stages import stage_of

MAX_SITES = 200


class Unreadable(SluiceError):
    """A site's answer that this version can't read."""


class Client(Protocol):
    """A site's links function, as `sluice.operator.functions.ControlClient` asks it."""

    def ask(self, operation: Operation[R], /) -> R:
        """Ask for one of `sluice.federation.operations`. Raises `RequestRefused`, `CallFailed`, `Malformed`."""


@dataclass(frozen=True, slots=True)
class OpenSite:
    """A site that can be asked."""

    name: SiteName
    client: Client

    def view(self) -> SiteView:
        """As it is now. Raises `Unreadable`, and what asking it raises."""
        try:
            return self.client.ask(ShowSite())
        except Malformed as error:
            raise Unreadable(f"the site's answer can't be read, is it of another version? {error}") from error


class NoExchange(BadConfiguration):
    """The site has no exchange of this name."""


def need_exchange(site: OpenSite, exchange: str) -> None:
    """Ask a site whether it has an exchange. Raises `NoExchange` with those that it has, and what asking it raises."""
    names = [each.name for each in site.client.ask(ListExchanges()).exchanges]
    if exchange not in names:
        raise NoExchange(f"no such exchange at {site.name}: {exchange}; there are {', '.join(names)}")


Asking = Callable[[SiteName], Client]


def open_site(text: str) -> OpenSite:
    """Open the site of this name. Raises `BadSiteName`, and what connecting to it raises."""
    return open_named(SiteName.parse(text))


def open_named(name: SiteName) -> OpenSite:
    """Open the site of this name. Raises what connecting to it raises."""
    return OpenSite(name, _asking.get()(name))


def _by_invocation(name: SiteName) -> Client:
    try:
        return ControlClient.of(name.connect(), FEDERATION)
    except NotUsable as error:
        raise NotUsable(f"{name}: {error}") from error  # a command is often about several sites


_asking: ContextVar[Asking] = ContextVar("asking", default=_by_invocation)


@contextmanager
def asked_by(asking: Asking) -> Iterator[None]:
    """For whoever has another way to ask sites: all commands ask them so."""
    before = _asking.set(asking)
    try:
        yield
    finally:
        _asking.reset(before)


# All sites that links lead to


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """What was found. `not_reached` has the reasons, by tag or name, for sites that couldn't be asked.

    `ways` are those of dynamic routes by the tag of the site that they begin at, as the site says them.
    """

    topology: Topology
    not_reached: Mapping[str, str]
    ways: Mapping[str, Sequence[WayView]]


def walk(names: Iterable[str], *, most: int = MAX_SITES) -> Walked:
    """Ask these sites, and all that links lead to, the nearest first, until `most` have answered.

    Raises what asking one of these themselves raises; the others are noted.
    """
    return walk_from((open_named(SiteName.parse(name)) for name in names), most=most)


def walk_from(sites: Iterable[OpenSite], *, most: int = MAX_SITES) -> Walked:
    """Ask these sites, and all that links lead to, as `walk` does."""
    views: dict[str, SiteView] = {}
    ways: dict[str, Sequence[WayView]] = {}
    not_reached: dict[str, str] = {}
    to_visit = deque[_Neighbour]()
    for opened in sites:
        view = opened.view()
        to_visit.extend(_take_in(opened, view, views))
        ways[view.tag] = _ways(opened, view)
    tried: set[tuple[str, SiteName | None]] = set()
    while to_visit and len(views) < most:
        stop = to_visit.popleft()
        # What one site's credentials don't reach, another's may.
        if stop.tag in views or (stop.tag, stop.name) in tried:
            continue
        tried.add((stop.tag, stop.name))
        try:
            opened, view = _visited(stop)
        except SluiceError as error:
            not_reached[stop.tag] = str(error)
        else:
            to_visit.extend(_take_in(opened, view, views))
            ways[view.tag] = _ways(opened, view)
    return Walked(
        topology=Topology.of(_site(view, views.keys()) for view in views.values()),
        not_reached={tag: reason for tag, reason in not_reached.items() if tag not in views},
        ways=ways,
    )


def _ways(opened: OpenSite, view: SiteView) -> Sequence[WayView]:
    """Only a site with dynamic routes is asked for them."""
    if not any(each.dynamic for each in view.bridges):
        return ()
    return opened.client.ask(ListWays()).ways


@dataclass(frozen=True, slots=True, kw_only=True)
class _Neighbour:
    """A site that a link leads to. `name` is None where it can't be asked by who asked the site that has the link."""

    tag: str
    account: str
    name: SiteName | None


def _take_in(opened: OpenSite, view: SiteView, views: dict[str, SiteView]) -> list[_Neighbour]:
    known = views.setdefault(view.tag, view)
    if known.address.control_queue_url != view.address.control_queue_url:
        raise BadConfiguration(
            f"two sites have the tag {view.tag}: in {known.address.account}/{known.address.region}"
            f" and {view.address.account}/{view.address.region}"
        )
    neighbours: list[_Neighbour] = []
    for link in view.links:
        there = link.endpoints[0]
        stage = stage_of(there.control_queue_url.rsplit("/", 1)[-1])
        name = opened.name.beside(there.region, there.account, of_account=view.address.account, stage=stage)
        neighbours.append(_Neighbour(tag=link.peer, account=there.account, name=name))
    return neighbours


def _visited(stop: _Neighbour) -> tuple[OpenSite, SiteView]:
    if stop.name is None:
        raise BadConfiguration(
            f"account {stop.account} isn't asked with these credentials: name the site, too, as PROFILE@REGION"
        )
    opened = open_named(stop.name)
    view = opened.view()
    if view.tag != stop.tag:
        raise BadConfiguration(f"the site at {stop.name} has the tag {view.tag}")
    return opened, view


def _site(view: SiteView, reached: Iterable[str]) -> MappedSite:
    """Leave out what a peer declared over a link and was reached to say itself: it would be there twice."""
    links = [each for each in view.links if not (each.served and each.peer in reached)]
    names = {each.name for each in links}
    shown_names = {each.src: each.reads for each in view.bridges if each.src_is_queue and each.reads}
    return MappedSite(
        tag=view.tag,
        region=view.address.region,
        exchanges={exchange.name: exchange.type for exchange in view.exchanges},
        links=tuple(links),
        statuses={each.name: each.status for each in links},
        bridges=tuple(
            replace(each.declared_bridge(), src=shown_names.get(each.src, each.src))
            for each in view.bridges
            if each.link in names
        ),
        states={each.name: each.state for each in view.bridges},
        feeds=tuple(each.binding(queue=shown_names.get(each.queue)) for each in view.feeds),
    )
