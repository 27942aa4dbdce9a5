"""Sites as the commands of federation name them, and what a site says of itself, parsed.

A site is `REGION`, `PROFILE@REGION`, or `ACCOUNT/REGION`, which is one of the embedded cloud.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from sluice.cli.sites import connect
from sluice.errors import BadConfiguration, SluiceError
from sluice.federation.codec import address_of, bridge_of, link_of
from sluice.federation.declared import binding_of, exchange_of
from sluice.federation.links.links import Bridge, Link
from sluice.federation.links.registry import Address
from sluice.federation.links.states import State, Status
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import Exchange
from sluice.local.sites import SITE

if TYPE_CHECKING:  # boto3 is imported where a command connects, so that --help doesn't wait for it
    from sluice.aws.operator.connections import Connection

REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d")

SiteText = Annotated[str, typer.Argument(metavar="SITE", help="REGION, PROFILE@REGION, or ACCOUNT/REGION.")]
DestText = Annotated[str, typer.Argument(metavar="DEST", help="The site that messages go to.")]
SrcText = Annotated[str, typer.Argument(metavar="SRC", help="The site that they come from.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but what went wrong.")]


class BadSiteName(BadConfiguration):
    """A text that names no site."""


class Unreadable(SluiceError):
    """A site's answer that this version can't read."""


class Client(Protocol):
    """A site's links function, as `sluice.aws.operator.control_client.ControlClient` asks it."""

    def ask(self, op: str, /, **fields: Any) -> dict[str, Any]:
        """The result of an operation of `sluice.federation.operations`."""


@dataclass(frozen=True, slots=True)
class SiteName:
    """Where a site is, and with which credentials it is asked: a profile's, the embedded cloud's, or the user's."""

    region: str
    profile: str | None = None
    local_account: str | None = None

    @classmethod
    def parse(cls, text: str) -> "SiteName":
        """Raises `BadSiteName`."""
        if SITE.fullmatch(text):
            account, _, region = text.partition("/")
            return cls(region, local_account=account)
        profile, at, region = text.rpartition("@")
        if not REGION.fullmatch(region) or bool(at) != bool(profile):
            raise BadSiteName(f"{text!r} is no site: REGION, PROFILE@REGION, or ACCOUNT/REGION of the embedded cloud")
        return cls(region, profile=profile or None)

    def __str__(self) -> str:
        if self.local_account is not None:
            return f"{self.local_account}/{self.region}"
        return self.region if self.profile is None else f"{self.profile}@{self.region}"

    def beside(self, region: str, account: str, *, of_account: str) -> "SiteName | None":
        """Another site as it can be asked by who asks this one, `of_account`; None where it can't be."""
        if self.local_account is not None:
            return SiteName(region, local_account=account)
        return SiteName(region, profile=self.profile) if account == of_account else None

    def connect(self) -> "Connection":
        """Raises a `BadConfiguration` or `CloudFailed` that says what to do."""
        if self.local_account is not None:
            return connect(region=None, profile=None, local=str(self))
        return connect(region=self.region, profile=self.profile, local=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLink:
    """A link and how it is. `served` where the peer declared it, and not this site."""

    link: Link
    served: bool
    declared: bool
    status: Status
    address: Address | None

    @property
    def is_ending(self) -> bool:
        """Whether no route can be added to it any more."""
        return self.status.state in {State.CLOSING, State.CLOSED}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBridge:
    """A bridge and how it is. `state` is a link's, or what the source said; `reads` is its queue, at this site."""

    bridge: Bridge
    served: bool
    declared: bool
    state: str
    error: str | None
    reads: str | None
    last_forward_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteView:
    """What a site says of itself."""

    address: Address
    exchanges: tuple[Exchange, ...] = ()
    feeds: tuple[Binding, ...] = ()
    links: tuple[ShownLink, ...] = ()
    bridges: tuple[ShownBridge, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """The site's."""
        return self.address.tag

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "SiteView":
        """From the result of operation `site`. Raises `Unreadable`."""
        try:
            return cls(
                address=address_of(document["address"]),
                exchanges=tuple(exchange_of(each) for each in document["exchanges"]),
                feeds=tuple(binding_of(each) for each in document["feeds"]),
                links=tuple(_link(each) for each in document["links"]),
                bridges=tuple(_bridge(each) for each in document["bridges"]),
                document=document,
            )
        except (KeyError, TypeError, ValueError, SluiceError) as error:
            raise Unreadable(f"the site's answer can't be read, is it of another version? {error}") from error

    def link_named(self, name: str) -> ShownLink | None:
        """None where there is none."""
        return next((each for each in self.links if each.link.name == name), None)

    def links_to(self, peer: str) -> list[ShownLink]:
        """Those that were declared here and aren't about to go."""
        return [each for each in self.links if each.link.peer == peer and not each.served and not each.is_ending]

    def bridge_named(self, name: str) -> ShownBridge | None:
        """None where there is none."""
        return next((each for each in self.bridges if each.bridge.name == name), None)


def _link(document: Mapping[str, Any]) -> ShownLink:
    names = ("name", "peer", "endpoints", "role_arn", "external_id", "durable")
    status, address = document["status"], document["address"]
    return ShownLink(
        link=link_of({name: document[name] for name in names}),
        served=document["served"],
        declared=document["declared"],
        status=Status(**status | {"state": State(status["state"])}),
        address=None if address is None else address_of(address),
    )


def _bridge(document: Mapping[str, Any]) -> ShownBridge:
    how = {name: document[name] for name in ("served", "declared", "state", "error", "reads", "last_forward_ms")}
    return ShownBridge(bridge=bridge_of({name: document[name] for name in document.keys() - how.keys()}), **how)


@dataclass(frozen=True, slots=True)
class OpenSite:
    """A site that can be asked."""

    name: SiteName
    client: Client

    def view(self) -> SiteView:
        """As it is now."""
        return SiteView.of(self.client.ask("site"))


Asking = Callable[[SiteName], Client]


def open_site(text: str) -> OpenSite:
    """The site of this name. Raises `BadSiteName`, and what connecting to it raises."""
    return open_named(SiteName.parse(text))


def open_named(name: SiteName) -> OpenSite:
    """See `open_site`."""
    return OpenSite(name, _asking.get()(name))


def _by_invocation(name: SiteName) -> Client:
    from sluice.aws.operator.control_client import FEDERATION, ControlClient  # noqa: PLC0415 - boto3 takes longer than --help
    from sluice.aws.operator.deployment import NotUsable  # noqa: PLC0415 - see above

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
