"""How the commands of federation ask sites, which they name by arguments."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from sluice.cli.site_names import SiteName
from sluice.errors import BadConfiguration, Malformed, SluiceError
from sluice.federation.operations import ListExchanges, ShowSite, SiteView
from sluice.operations import Operation, R


class Unreadable(SluiceError):
    """A site's answer that this version can't read."""


class Client(Protocol):
    """A site's links function, as `sluice.aws.operator.control_client.ControlClient` asks it."""

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
