"""Options of the commands that declare routes and change them, made of `BridgeDeclaration`; and what they say.

A field's type and default are the declaration's own. Here is what an option is called, and its help.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args

import typer
from msgspec import UNSET, UnsetType
from msgspec.structs import fields

from sluice.cli.output import is_json, is_quiet, tell
from sluice.cli.splitting.filters import filters_of
from sluice.cli.terminal import note
from sluice.codec import plain
from sluice.errors import BadFilter
from sluice.federation.links.links import MAX_CREDIT, MAX_RATE, MAX_SYNC, BridgeDeclaration, RouteKind
from sluice.federation.matching.metadata import MAX_TRACE_TAGS
from sluice.federation.operations import CloseBridge
from sluice.operator.federated_sites import OpenSite
from sluice.operator.routes import Duplicate, Ends, add_route, find_route, wait_until_operational, warnings_of
from sluice.splitting.filters.values import Filter

FIELDS = {field.name: field for field in fields(BridgeDeclaration)}
THE_ROUTE = "route"  # the queue that a route's filter is of, as the splitter reads it
EVERY_KIND = frozenset(RouteKind)
PUSH = typer.Option("--src-local", "-s", help="Push: link and route are the source's, not DEST's.")


class FieldOption(NamedTuple):
    """An option that sets a field of `BridgeDeclaration`, with what typer is told of it: of which kinds of routes."""

    field: str
    says: Any  # typer's own class, which it names for nobody
    kinds: frozenset[RouteKind] = EVERY_KIND

    def parameter(self, name: str, *, changes: str | None = None) -> Parameter:
        """Make a command's parameter. One that `changes` a route has this help, and no default."""
        field, says = FIELDS[self.field], copy(self.says)
        [type_] = (each for each in get_args(field.type) or [field.type] if each not in {UnsetType, NoneType})
        default = type_() if field.default is UNSET else field.default
        if changes is not None:
            default, says.help, says.show_default = None, changes, True
        return _keyword(name, Annotated[type_ if default is not None else type_ | None, says], default)

    def value(self, given: Any) -> Any:
        """Give the field's value: what may be left out of a declaration is, where the option says nothing."""
        return given or UNSET if FIELDS[self.field].default is UNSET else given


def _keyword(name: str, annotation: Any, default: Any = None) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


# By the parameters' names, in the order of the help.
OPTIONS: Mapping[str, FieldOption] = {
    "expires": FieldOption(
        "expires_s",
        typer.Option(min=1, metavar="SECONDS", help="Forget what is wanted when the link has been down so long."),
        kinds=frozenset({RouteKind.DYNAMIC}),
    ),
    "src_local": FieldOption("src_is_local", PUSH, kinds=EVERY_KIND - {RouteKind.DYNAMIC}),
    "durable": FieldOption(
        "durable",
        typer.Option("--durable/--no-durable", "-d", help="Else a link that is made for it goes with it."),
    ),
    "ack": FieldOption("sync", typer.Option(min=1, max=MAX_SYNC, help="Messages that are acknowledged at once.")),
    "credit": FieldOption(
        "credit", typer.Option(min=0, max=MAX_CREDIT, help="Messages under way at once; 0 is no limit.")
    ),
    "max_hops": FieldOption(
        "max_hops", typer.Option(min=1, max=MAX_TRACE_TAGS, help="Sites that a message may have passed.")
    ),
    "dest_key": FieldOption(
        "dest_key",
        typer.Option(metavar="KEY", help="The key that messages have at DEST.", show_default="their own"),
        kinds=EVERY_KIND - {RouteKind.DYNAMIC},
    ),
    "rate": FieldOption(
        "rate", typer.Option(min=0, max=MAX_RATE, help="Messages a second, at most.", show_default="no limit")
    ),
    "ttl": FieldOption(
        "retention_s",
        typer.Option(metavar="SECONDS", help="How long the bridge queue keeps a message.", show_default="14 days"),
        kinds=EVERY_KIND - {RouteKind.QUEUE},
    ),
}
# What of a route that is there can be changed, in the order and with the help of `route change`.
CHANGES: Mapping[str, str] = {
    "dest_key": 'At DEST; "" is their own.',
    "ack": "Messages acknowledged at once.",
    "credit": "Messages under way; 0 is no limit.",
    "max_hops": "Sites that may be passed.",
    "rate": "Messages a second; 0 is no limit.",
    "ttl": "Of the bridge queue; 0 is 14 days.",
}

TagArgument = Annotated[str | None, typer.Argument(metavar="TAG", help="Appended to traces; else the source's.")]
ExcludesArgument = Annotated[
    str | None, typer.Argument(metavar="EXCLUDES", help="TAG,TAG: no message's trace has them.")
]
TagOption = Annotated[str | None, typer.Option("--tag", metavar="TAG", help="The same as TAG.")]
ExcludesOption = Annotated[str | None, typer.Option("--excludes", metavar="TAG,TAG", help="The same as EXCLUDES.")]
ChangedTag = Annotated[str | None, typer.Option(help='Appended to traces; "" is the source\'s.')]
ChangedExcludes = Annotated[str | None, typer.Option(metavar="TAG,TAG", help="Tags that no message's trace may have.")]
LinkOption = Annotated[
    str | None, typer.Option("--link", metavar="NAME", help="Which link, where several go to the peer; or a new one.")
]
Timeout = Annotated[float, typer.Option(min=0, help="Seconds to wait until it is Operational; 0 doesn't wait.")]
SrcLocal = Annotated[bool, PUSH]
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

DEFAULT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    """What the options say: fields of a declaration, which link, and how long is waited for the route."""

    fields: Mapping[str, Any]
    link: str | None
    timeout_s: float

    @classmethod
    def taken_from(cls, given: dict[str, Any]) -> "RouteOptions":
        """Take them out of what a command was given; what isn't said is no field."""
        tag = _said_once("TAG", given.pop("tag"), "--tag", given.pop("tag_option", None))
        excludes = _said_once("EXCLUDES", given.pop("excludes"), "--excludes", given.pop("excludes_option", None))
        said = {name: given.pop(name) for name in OPTIONS if name in given}
        fields = {OPTIONS[name].field: OPTIONS[name].value(value) for name, value in said.items() if value is not None}
        if tag is not None:
            fields["tag"] = tag or None
        if excludes is not None:
            fields["excludes"] = frozenset(filter(None, excludes.split(",")))
        return cls(fields=fields, link=given.pop("link", None), timeout_s=given.pop("timeout"))

    def declaration(self, **own: Any) -> BridgeDeclaration:
        """Make the declaration of a route with these options, and what the command says of it by itself."""
        return BridgeDeclaration(**own, **self.fields)


def with_route_options(kind: RouteKind | None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command all options of routes of a kind; with None those that change a route.

    It gets what they say by its parameter `options`. Its own options that stand before that come first, those after it
    before the link's name and the time that is waited.
    """
    if kind is None:
        arguments, first = {}, {"tag": ChangedTag, "excludes": ChangedExcludes}
        options = [OPTIONS[name].parameter(name, changes=text) for name, text in CHANGES.items()]
        last = []
    else:
        arguments, first = (
            {"tag": TagArgument, "excludes": ExcludesArgument},
            {"tag_option": TagOption, "excludes_option": ExcludesOption},
        )
        options = [option.parameter(name) for name, option in OPTIONS.items() if kind in option.kinds]
        last = [_keyword("link", LinkOption)]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        own = list(signature(command).parameters.values())
        place = [each.name for each in own].index("options")
        keywords = next(number for number, each in enumerate(own) if each.kind is Parameter.KEYWORD_ONLY)

        @wraps(command)
        def with_options(**given: Any) -> None:
            options = RouteOptions.taken_from(given)
            command(**given, options=options)

        parameters = [
            *own[:keywords],
            *(_keyword(name, each).replace(kind=own[0].kind) for name, each in arguments.items()),
            *(_keyword(name, each) for name, each in first.items()),
            *own[keywords:place],
            *options,
            *own[place + 1 :],
            *last,
            _keyword("timeout", Timeout, DEFAULT_TIMEOUT_S),
        ]
        with_options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # which inspect reads
        return with_options

    return decorated


def _said_once(argument: str, by_argument: str | None, option: str, by_option: str | None) -> str | None:
    """Take what is said by an argument or by an option. Raises `BadParameter` where both say something."""
    if by_argument is not None and by_option is not None:
        raise typer.BadParameter(f"{argument} {by_argument} and {option} {by_option}: say one of them")
    return by_option if by_argument is None else by_argument


def filter_of(patterns: Sequence[str], program: str | None, file: Path | None) -> Filter | UnsetType:
    """Read a route's filter as `split start` reads a queue's; UNSET where nobody asks for one. Raises `BadFilter`."""
    if not patterns and program is None and file is None:
        return UNSET
    for pattern in patterns:
        if not all(pattern.partition("=")[:2]):
            raise BadFilter("--filter", f"{pattern!r} is not ATTRIBUTE=REGEX")
    options = [f"{THE_ROUTE}:{pattern}" for pattern in patterns]
    named = filters_of(file, options, jq=[] if program is None else [f"{THE_ROUTE}:{program}"])
    if len(named) != 1:
        raise BadFilter(str(file), f"has filters of {len(named)} queues: a route has one")
    return next(iter(named.values())).filter


def declare(dest: str, src: str, wanted: BridgeDeclaration, options: RouteOptions) -> None:
    """Add a route, wait for it, and say how it is. One that is there already is an error, unless it is to be quiet.

    Where it makes a second way for messages it says so, also where it is to be quiet: nothing else would.
    """
    ends = Ends.of(dest, src, src_local=wanted.src_is_local)
    try:
        route = add_route(ends, wanted, link=options.link)
    except Duplicate:
        if is_quiet():  # as with qpid-route: so a script may be run again
            return
        raise
    warnings = [str(finding) for finding in warnings_of(ends, route)]
    for warning in warnings:
        note(f"warning: {warning}")
    show_operational(ends.site, route.name, timeout_s=options.timeout_s, warnings=warnings)


def show_operational(site: OpenSite, name: str, *, timeout_s: float, warnings: Sequence[str] = ()) -> None:
    """Wait for a route, and say how it is. Raises `NotOperational`."""
    shown = wait_until_operational(site, name, timeout_s=timeout_s)
    tell({**plain(shown), "warnings": list(warnings)}, f"{name}: {shown.state}")


def withdraw(dest: str, src: str, wanted: BridgeDeclaration, *, link: str | None, del_empty_link: bool) -> None:
    """Take the route away that goes this way, and say so."""
    ends = Ends.of(dest, src, src_local=wanted.src_is_local)
    name = find_route(ends, wanted, link=link).name
    ends.site.client.ask(CloseBridge(name=name, del_empty_link=del_empty_link))
    tell_closing(ends.site, [name])


def tell_closing(site: OpenSite, routes: Sequence[str]) -> None:
    """Say which routes are about to go from a site."""
    document = {"site": str(site.name), "routes": routes, "done": "closing"}
    if is_json() or routes:
        said = "\n".join(f"{name} is about to go from {site.name}" for name in routes)
        tell(document, said)
