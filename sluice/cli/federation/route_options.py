"""Defines the options of the commands that declare and change routes, and prints the results of these commands.

The type and the default of an option are those of its field in `BridgeDeclaration`; its name and help are set here.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args

import typer
from msgspec import UNSET, UnsetType
from msgspec.structs import fields

from sluice.cli.output import is_json, is_quiet, print_result
from sluice.cli.splitting.filters import read_filters
from sluice.cli.terminal import print_note
from sluice.codec import to_document
from sluice.errors import BadFilter
from sluice.federation.links.links import MAX_CREDIT, MAX_RATE, MAX_SYNC, BridgeDeclaration, RouteKind
from sluice.federation.matching.metadata import MAX_TRACE_TAGS
from sluice.federation.operations import CloseBridge
from sluice.operator.federated_sites import OpenSite
from sluice.operator.routes import (
    DuplicateRoute,
    LinkEnds,
    add_route,
    find_route,
    find_route_problems,
    wait_until_operational,
    withdraw_grants,
)
from sluice.splitting.filters.values import Filter

FIELDS = {field.name: field for field in fields(BridgeDeclaration)}
THE_ROUTE = "route"  # `read_filters` needs a queue id, and a route's filter has none.
EVERY_KIND = frozenset(RouteKind)
PUSH = typer.Option("--src-local", "-s", help="Push: SRC, not DEST, owns the link and the route.")


class RouteFieldOption(NamedTuple):
    """A command-line option that sets a field of `BridgeDeclaration`, and the kinds of routes that have the option."""

    field_name: str
    typer_option: Any  # The type is `Any` because typer doesn't export the class of its options.
    route_kinds: frozenset[RouteKind] = EVERY_KIND

    def build_parameter(self, name: str, *, changes: bool = False) -> Parameter:
        """Return the option as a parameter of a command's function. With `changes`, the parameter has no default."""
        field, option = FIELDS[self.field_name], copy(self.typer_option)
        [type_] = (member for member in get_args(field.type) or [field.type] if member not in {UnsetType, NoneType})
        default = type_() if field.default is UNSET else field.default
        if changes:
            default, option.show_default = None, True
        return _build_parameter(name, Annotated[type_ if default is not None else type_ | None, option], default)

    def convert_argument(self, argument: Any) -> Any:
        """Convert the option's argument to the field's value: UNSET for an optional field and an empty argument."""
        return argument or UNSET if FIELDS[self.field_name].default is UNSET else argument


def _build_parameter(name: str, annotation: Any, default: Any = None) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


# Options by the names of their parameters, in the order of --help.
OPTIONS: Mapping[str, RouteFieldOption] = {
    "expires": RouteFieldOption(
        "expires_s",
        typer.Option(min=1, metavar="SECONDS", help="Drop DEST's bindings after the link was down this long."),
        route_kinds=frozenset({RouteKind.DYNAMIC}),
    ),
    "src_local": RouteFieldOption("src_is_local", PUSH, route_kinds=EVERY_KIND - {RouteKind.DYNAMIC}),
    "durable": RouteFieldOption(
        "durable", typer.Option("--durable/--no-durable", "-d", help="Keep the link when its last route is deleted.")
    ),
    "ack": RouteFieldOption("sync", typer.Option(min=1, max=MAX_SYNC, help="Messages acknowledged in one batch.")),
    "credit": RouteFieldOption(
        "credit", typer.Option(min=0, max=MAX_CREDIT, help="Maximum messages in flight; 0 is no limit.")
    ),
    "max_hops": RouteFieldOption(
        "max_hops", typer.Option(min=1, max=MAX_TRACE_TAGS, help="Maximum hops of a message, this one included.")
    ),
    "dest_key": RouteFieldOption(
        "dest_key",
        typer.Option(
            metavar="KEY", help='Routing key that messages get at DEST; "" keeps their own.', show_default="their own"
        ),
        route_kinds=EVERY_KIND - {RouteKind.DYNAMIC},
    ),
    "rate": RouteFieldOption(
        "rate",
        typer.Option(min=0, max=MAX_RATE, help="Maximum messages per second; 0 is no limit.", show_default="no limit"),
    ),
    "ttl": RouteFieldOption(
        "retention_s",
        typer.Option(
            metavar="SECONDS", help="Retention of messages in the bridge queue; 0 is 14 days.", show_default="14 days"
        ),
        route_kinds=EVERY_KIND - {RouteKind.QUEUE},
    ),
}
# The options of `route change`, in the order of --help. "" or 0 removes an optional value.
CHANGEABLE = ("dest_key", "ack", "credit", "max_hops", "rate", "ttl")

TagArgument = Annotated[
    str | None, typer.Argument(metavar="TAG", help="Tag appended to traces; default: the source's.")
]
ExcludesArgument = Annotated[
    str | None, typer.Argument(metavar="EXCLUDES", help="TAG,TAG: skip messages whose trace has one of these tags.")
]
ChangedTag = Annotated[str | None, typer.Option(help='Tag appended to traces; "" restores the source\'s.')]
ChangedExcludes = Annotated[
    str | None, typer.Option(metavar="TAG,TAG", help="Skip messages whose trace has one of these tags.")
]
LinkOption = Annotated[
    str | None,
    typer.Option(
        "--link", metavar="NAME", help="Name of an existing link to use if there are several, or of a new one."
    ),
]
Timeout = Annotated[float, typer.Option(min=0, help="Seconds to wait until the route is Operational; 0 doesn't wait.")]
SrcLocal = Annotated[bool, PUSH]
Patterns = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="ATTRIBUTE=REGEX",
        help="Forward only messages whose attribute matches; repeated filters must all match.",
    ),
]
Program = Annotated[
    str | None,
    typer.Option(
        "--jq",
        metavar="PROGRAM",
        help="Forward only messages for which this jq program returns true, in addition to --filter.",
    ),
]
DelEmptyLink = Annotated[
    bool, typer.Option("--del-empty-link", "-e", help="Also delete the link if this was its last route.")
]

DEFAULT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    """A route command's parsed options: fields of the declaration, the link, and how long to wait for the route."""

    route_fields: Mapping[str, Any]
    link: str | None
    timeout_s: float

    @classmethod
    def from_arguments(cls, arguments: dict[str, Any]) -> "RouteOptions":
        """Remove the route options from a command's `arguments` and parse them. An omitted option sets no field."""
        tag, excludes = arguments.pop("tag"), arguments.pop("excludes")
        values = {name: arguments.pop(name) for name in OPTIONS if name in arguments}
        fields = {
            OPTIONS[name].field_name: OPTIONS[name].convert_argument(value)
            for name, value in values.items()
            if value is not None
        }
        if tag is not None:
            fields["tag"] = tag or None
        if excludes is not None:
            fields["excludes"] = frozenset(filter(None, excludes.split(",")))
        return cls(route_fields=fields, link=arguments.pop("link", None), timeout_s=arguments.pop("timeout"))

    def build_declaration(self, **own: Any) -> BridgeDeclaration:
        """Build the declaration of a route from these options and the fields that the command itself sets (`own`)."""
        return BridgeDeclaration(**own, **self.route_fields)


def with_route_options(kind: RouteKind | None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of a kind of routes to a command; None: the options of `route change`.

    The command gets the parsed options as its parameter `options`. In --help they are in this parameter's place, and
    `--link` and `--timeout` follow the command's own options.
    """
    if kind is None:
        tags = {"tag": ChangedTag, "excludes": ChangedExcludes}
        options = [OPTIONS[name].build_parameter(name, changes=True) for name in CHANGEABLE]
        last = []
    else:
        tags = {"tag": TagArgument, "excludes": ExcludesArgument}
        options = [option.build_parameter(name) for name, option in OPTIONS.items() if kind in option.route_kinds]
        last = [_build_parameter("link", LinkOption)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(signature(command).parameters.values())
        place = [parameter.name for parameter in own].index("options")
        keywords = next(number for number, parameter in enumerate(own) if parameter.kind is Parameter.KEYWORD_ONLY)

        @wraps(command)
        def with_options(**values: Any) -> None:
            options = RouteOptions.from_arguments(values)
            command(**values, options=options)

        parameters = [
            *own[:keywords],
            *(
                _build_parameter(name, annotation).replace(kind=Parameter.KEYWORD_ONLY if kind is None else own[0].kind)
                for name, annotation in tags.items()
            ),
            *own[keywords:place],
            *options,
            *own[place + 1 :],
            *last,
            _build_parameter("timeout", Timeout, DEFAULT_TIMEOUT_S),
        ]
        with_options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # inspect reads it
        return with_options

    return decorate


def read_filter(patterns: Sequence[str], program: str | None) -> Filter | UnsetType:
    """Parse a route's `--filter` patterns and `--jq` program; UNSET if there are none. Raises `BadFilter`."""
    if not patterns and program is None:
        return UNSET
    for pattern in patterns:
        if not all(pattern.partition("=")[:2]):
            raise BadFilter("--filter", f"{pattern!r} is not ATTRIBUTE=REGEX")
    options = [f"{THE_ROUTE}:{pattern}" for pattern in patterns]
    named, _ = read_filters(None, options, jq=[] if program is None else [f"{THE_ROUTE}:{program}"])
    return next(iter(named.values())).filter


def add_and_show_route(dest: str, src: str, declaration: BridgeDeclaration, options: RouteOptions) -> None:
    """Add a route, wait until it is Operational, and print its state. A route that exists is an error without --quiet.

    Warnings, such as a second path for messages, are printed even with --quiet, because nothing else reports them.
    """
    ends = LinkEnds.from_names(dest, src, src_local=declaration.src_is_local)
    try:
        route = add_route(ends, declaration, link=options.link)
    except DuplicateRoute:
        if is_quiet():  # With --quiet, an existing route is no error, so that a script can be run again.
            return
        raise
    address, own = ends.peer.address, ends.view.address
    if declaration.dynamic and address is not None and address.account != own.account:
        print_note(f"{address.tag} sends {own.tag} nothing for other sites unless `peer add --lead` there allows it")
    warnings = [str(finding) for finding in find_route_problems(ends, route)]
    for warning in warnings:
        print_note(f"warning: {warning}")
    wait_and_show_route(ends.site, route.name, timeout_s=options.timeout_s, warnings=warnings)


def wait_and_show_route(site: OpenSite, name: str, *, timeout_s: float, warnings: Sequence[str] = ()) -> None:
    """Wait until a route is Operational, and print its state. Raises `NotOperational` after `timeout_s` seconds."""
    shown = wait_until_operational(site, name, timeout_s=timeout_s)
    print_result({**to_document(shown), "warnings": list(warnings)}, f"{name}: {shown.state}")


def remove_route(
    dest: str, src: str, declaration: BridgeDeclaration, *, link: str | None, del_empty_link: bool
) -> None:
    """Delete the route that matches the declaration, and print a confirmation."""
    ends = LinkEnds.from_names(dest, src, src_local=declaration.src_is_local)
    route = find_route(ends, declaration, link=link)
    ends.site.client.ask(CloseBridge(name=route.name, del_empty_link=del_empty_link))
    report_closing(ends.site, [route.name], kept_permissions=withdraw_grants(ends, [route]))


def report_closing(site: OpenSite, routes: Sequence[str], *, kept_permissions: Sequence[str]) -> None:
    """Print which routes of a site are closing, and which of their permissions were not removed."""
    document = {"site": str(site.name), "routes": routes, "done": "closing"}
    if is_json() or routes:
        said = "\n".join(f"{name} is closing at {site.name}" for name in routes)
        print_result(document, said)
    for permission in kept_permissions:
        print_note(permission)
