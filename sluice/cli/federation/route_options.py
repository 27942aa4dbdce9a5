"""What the commands that declare routes have in common: their options, and what they say."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from msgspec import UNSET, UnsetType

from sluice.cli.federation.route_declarations import (
    Duplicate,
    Ends,
    add_route,
    find_route,
    wait_until_operational,
)
from sluice.cli.federation.sites import OpenSite
from sluice.cli.output import note, plain, tell
from sluice.errors import BadFilter
from sluice.federation.links.links import MAX_CREDIT, MAX_RATE, MAX_SYNC, BridgeDeclaration
from sluice.federation.matching.tracing import MAX_TRACE_TAGS
from sluice.federation.operations import CloseBridge
from sluice.splitting.filters.values import Filter

T = TypeVar("T")

THE_ROUTE = "route"  # the queue that a route's filter is of, as the splitter reads it

TagArgument = Annotated[str | None, typer.Argument(metavar="TAG", help="Appended to traces; else the source's.")]
ExcludesArgument = Annotated[
    str | None, typer.Argument(metavar="EXCLUDES", help="TAG,TAG: no message's trace has them.")
]
TagOption = Annotated[str | None, typer.Option("--tag", metavar="TAG", help="The same as TAG.")]
ExcludesOption = Annotated[str | None, typer.Option("--excludes", metavar="TAG,TAG", help="The same as EXCLUDES.")]
SrcLocal = Annotated[bool, typer.Option("--src-local", "-s", help="Push: link and route are the source's, not DEST's.")]
Durable = Annotated[
    bool, typer.Option("--durable/--no-durable", "-d", help="Else a link that is made for it goes with it.")
]
Ack = Annotated[int, typer.Option("--ack", min=1, max=MAX_SYNC, help="Messages that are acknowledged at once.")]
Credit = Annotated[int, typer.Option(min=0, max=MAX_CREDIT, help="Messages under way at once; 0 is no limit.")]
MaxHops = Annotated[int, typer.Option(min=1, max=MAX_TRACE_TAGS, help="Sites that a message may have passed.")]
LinkOption = Annotated[
    str | None, typer.Option("--link", metavar="NAME", help="Which link, where several go to the peer; or a new one.")
]
Timeout = Annotated[float, typer.Option(min=0, help="Seconds to wait until it is Operational; 0 doesn't wait.")]
DestKey = Annotated[
    str, typer.Option("--dest-key", metavar="KEY", help="The key that messages have at DEST.", show_default="their own")
]
Ttl = Annotated[
    int,
    typer.Option("--ttl", metavar="SECONDS", help="How long the bridge queue keeps a message.", show_default="14 days"),
]
Rate = Annotated[int, typer.Option(min=0, max=MAX_RATE, help="Messages a second, at most.", show_default="no limit")]
Patterns = Annotated[
    list[str] | None,
    typer.Option(
        "--filter", metavar="ATTRIBUTE=REGEX", help="Only what matches goes over; of several, what matches all."
    ),
]
Program = Annotated[
    str | None, typer.Option("--jq", metavar="PROGRAM", help="Only what it says true of, beside --filter.")
]
FilterFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="In place of both: a filter file of the splitter, of one queue.")
]
DelEmptyLink = Annotated[
    bool, typer.Option("--del-empty-link", "-e", help="With the last of a link's routes, the link.")
]

DEFAULT_ACK = 10
DEFAULT_TIMEOUT_S = 30.0


def if_said(value: T) -> T | UnsetType:
    """Return what an option says, UNSET for one that says nothing."""
    return value or UNSET


def filter_of(patterns: Sequence[str], program: str | None, file: Path | None) -> Filter | UnsetType:
    """Read a route's filter as `split start` reads a queue's; UNSET where nobody asks for one. Raises `BadFilter`."""
    if not patterns and program is None and file is None:
        return UNSET
    from sluice.cli.splitting.filters import filters_of  # noqa: PLC0415 - patterns compile where a route has some

    for pattern in patterns:
        if not all(pattern.partition("=")[:2]):
            raise BadFilter("--filter", f"{pattern!r} is not ATTRIBUTE=REGEX")
    options = [f"{THE_ROUTE}:{pattern}" for pattern in patterns]
    named = filters_of(file, options, jq=[] if program is None else [f"{THE_ROUTE}:{program}"])
    if len(named) != 1:
        raise BadFilter(str(file), f"has filters of {len(named)} queues: a route has one")
    return next(iter(named.values())).filter


def tags(excludes: str) -> frozenset[str]:
    """From `TAG,TAG`."""
    return frozenset(tag for tag in excludes.split(",") if tag)


def said_once(argument: str, by_argument: str | None, option: str, by_option: str | None) -> str | None:
    """Take what is said by an argument or by an option. Raises `BadParameter` where both say something."""
    if by_argument is not None and by_option is not None:
        raise typer.BadParameter(f"{argument} {by_argument} and {option} {by_option}: say one of them")
    return by_option if by_argument is None else by_argument


def declare(
    ends: Ends, wanted: BridgeDeclaration, *, link: str | None, timeout_s: float, quiet: bool, as_json: bool
) -> None:
    """Add a route, wait for it, and say how it is. One that is there already is an error, unless `quiet`.

    Where it makes a second way for messages it says so, also where it is to be `quiet`: nothing else would.
    """
    from sluice.cli.federation.topologies import warnings_of  # noqa: PLC0415 - it imports from here, too

    try:
        route = add_route(ends, wanted, link=link)
    except Duplicate:
        if quiet:  # as with qpid-route: so a script may be run again
            return
        raise
    warnings = [str(finding) for finding in warnings_of(ends, route)]
    for warning in warnings:
        note(f"warning: {warning}")
    show_operational(ends.site, route.name, timeout_s=timeout_s, quiet=quiet, as_json=as_json, warnings=warnings)


def show_operational(
    site: OpenSite, name: str, *, timeout_s: float, quiet: bool, as_json: bool, warnings: Sequence[str] = ()
) -> None:
    """Wait for a route, and say how it is. Raises `NotOperational`."""
    shown = wait_until_operational(site, name, timeout_s=timeout_s)
    tell({**plain(shown), "warnings": list(warnings)}, f"{name}: {shown.state}", as_json=as_json, quiet=quiet)


def withdraw(
    ends: Ends, wanted: BridgeDeclaration, *, link: str | None, del_empty_link: bool, quiet: bool, as_json: bool
) -> None:
    """Take the route away that goes this way, and say so."""
    name = find_route(ends, wanted, link=link).name
    ends.site.client.ask(CloseBridge(name=name, del_empty_link=del_empty_link))
    tell_closing(ends.site, [name], quiet=quiet, as_json=as_json)


def tell_closing(site: OpenSite, routes: Sequence[str], *, quiet: bool, as_json: bool) -> None:
    """Say which routes are about to go from a site."""
    document = {"site": str(site.name), "routes": routes, "done": "closing"}
    if as_json or routes:
        said = "\n".join(f"{name} is about to go from {site.name}" for name in routes)
        tell(document, said, as_json=as_json, quiet=quiet)
