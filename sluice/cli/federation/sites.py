"""Sites as the commands of federation name them, and how a site is asked.

A site is `REGION`, `PROFILE@REGION`, or `ACCOUNT/REGION`, which is one of the embedded cloud. Where several are in one
account and region, `:STAGE` after it says which; else it is the command's `--stage`.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from sluice.cli.sites import connect, stage_said
from sluice.errors import BadConfiguration, Malformed, SluiceError
from sluice.federation.operations import ListExchanges, ShowSite, SiteView
from sluice.local.sites import SITE
from sluice.operations import Operation, R
from sluice.stages import is_stage

if TYPE_CHECKING:  # boto3 is imported where a command connects, so that --help doesn't wait for it
    from sluice.aws.operator.connections import Connection

REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d")

SiteText = Annotated[str, typer.Argument(metavar="SITE", help="REGION, PROFILE@REGION, or ACCOUNT/REGION; :STAGE.")]
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

    def ask(self, operation: Operation[R], /) -> R:
        """Ask for one of `sluice.federation.operations`. Raises `RequestRefused`, `CallFailed`, `Malformed`."""


@dataclass(frozen=True, slots=True)
class SiteName:
    """Where a site is, and with which credentials it is asked: a profile's, the embedded cloud's, or the user's."""

    region: str
    profile: str | None = None
    local_account: str | None = None
    stage: str | None = None

    @classmethod
    def parse(cls, text: str) -> "SiteName":
        """Read a site's name. Raises `BadSiteName`."""
        place, colon, stage = text.rpartition(":")
        if not colon:
            place, stage = text, stage_said() or ""
        profile, at, region = place.rpartition("@")
        is_local = SITE.fullmatch(place)
        if (colon or stage) and not is_stage(stage):
            raise BadSiteName(f"{text!r} is no site: {stage!r} is no stage")
        if not is_local and (not REGION.fullmatch(region) or bool(at) != bool(profile)):
            raise BadSiteName(f"{text!r} is no site: REGION, PROFILE@REGION, or ACCOUNT/REGION of the embedded cloud")
        if is_local:
            return cls(is_local[2], local_account=is_local[1], stage=stage or None)
        return cls(region, profile=profile or None, stage=stage or None)

    def __str__(self) -> str:
        stage = f":{self.stage}" if self.stage else ""
        if self.local_account is not None:
            return f"{self.local_account}/{self.region}{stage}"
        return (self.region if self.profile is None else f"{self.profile}@{self.region}") + stage

    def beside(self, region: str, account: str, *, of_account: str, stage: str | None = None) -> "SiteName | None":
        """Another site as it can be asked by who asks this one, `of_account`; None where it can't be."""
        if self.local_account is not None:
            return SiteName(region, local_account=account, stage=stage)
        return SiteName(region, profile=self.profile, stage=stage) if account == of_account else None

    def connect(self) -> "Connection":
        """Connect to the site. Raises a `BadConfiguration` or `CloudFailed` that says what to do."""
        if self.local_account is not None:
            return connect(region=None, profile=None, local=str(self))
        return connect(region=self.region, profile=self.profile, local=None, stage=self.stage)


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
