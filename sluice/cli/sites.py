"""Defines commands about sites: their common options, and how these combine with arguments that name sites.

The grammar of site names is in `sluice.operator.site_names`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from itertools import zip_longest
from typing import Annotated, Any, ClassVar, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from sluice.cli.completion import complete_local_option, complete_profiles, complete_sites
from sluice.cli.output import AsJson, Quiet, use_output_options
from sluice.cli.terminal import SETTINGS, ShortHelp
from sluice.local.sites import Site
from sluice.operator.site_names import (
    FIRST_SITE,
    HERE,
    PARAMETER_PREFIX,
    ParsedSiteName,
    SiteOptions,
    is_site_name,
    use_site_options,
)
from sluice.stages import STAGE, is_stage

F = TypeVar("F", bound=Callable[..., Any])

# An argument with one of these metavars in --help names a site. A command's first such argument may be omitted.
SITES = "SITE", "DEST", "SRC", "PEER"
PLACE = "account", "region", "stage"


def parse_stage(stage: str) -> str | None:
    """Parse a stage's name. An empty text, such as the value of an empty environment variable, means no stage."""
    if stage and not is_stage(stage):
        raise typer.BadParameter(f"{stage!r} is not a stage's name: it must match {STAGE} and not be sluice")
    return stage or None


Stage = Annotated[
    str | None,
    typer.Option(
        "--stage",
        parser=parse_stage,
        metavar="STAGE",
        envvar="SLUICE_STAGE",
        help="Stage of the site, if an account and region has several sites.",
    ),
]
Region = Annotated[
    str | None,
    typer.Option("--region", metavar="REGION", help="AWS region. Default: the environment's or the profile's."),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="PROFILE",
        help="AWS profile. Default: the environment's.",
        autocompletion=complete_profiles,
    ),
]
# Each option has the name of a field of `SiteOptions`. The order is that of --help.
OPTIONS: Mapping[str, Any] = {
    "site": Annotated[
        str | None,
        typer.Option(
            "--site",
            metavar="SITE",
            help="REGION, PROFILE@REGION, ACCOUNT/REGION in the embedded cloud, or a name; optionally :STAGE.",
            autocompletion=complete_sites,
        ),
    ],
    "profile": Profile,
    "region": Region,
    "local": Annotated[
        str | None,
        typer.Option(
            "--local",
            metavar="[ACCOUNT/REGION]",
            help="Use the embedded cloud, not AWS: this site, or by default the one in --region, or the first.",
            autocompletion=complete_local_option,
        ),
    ],
    "stage": Stage,
}


def _make_argument(metavar: str, help_: str) -> Any:
    return typer.Argument(metavar=metavar, help=help_, autocompletion=complete_sites)


SiteText = Annotated[
    str,
    _make_argument("SITE", "A site, written as for --site. Default: the site of the options or the environment."),
]
DestText = Annotated[str, _make_argument("DEST", "The site that messages are forwarded to, written as for --site.")]
SrcText = Annotated[str, _make_argument("SRC", "The site that messages are forwarded from, written as for --site.")]


class PlainCommand(ShortHelp, TyperCommand):
    """A command that needs no site."""


class SiteCommand(PlainCommand):
    """A command about sites. The first argument that names a site, and the value of `--local`, are optional."""

    common_options: ClassVar[Sequence[str]] = tuple(OPTIONS)

    def __init__(self, *given: Any, **settings: Any) -> None:
        """Create the command as typer does, show arguments in capitals, and make the first site argument optional."""
        super().__init__(*given, **settings)
        for argument in self.params:
            if argument.param_type_name == "argument":
                argument.metavar = argument.metavar or argument.name.upper()
        for first in self._site_arguments[:1]:
            first.required = False
            first.default = HERE if first.nargs == 1 else [HERE]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add an omitted site argument, then parse. Raises `UsageError` if options and arguments are contradictory."""
        rest = super().parse_args(ctx, self._add_default_site(ctx, add_local_value(args)))
        if not ctx.resilient_parsing:
            _check_contradictions(ctx, self._site_arguments)
        return rest

    @property
    def _site_arguments(self) -> Sequence[Any]:
        """The command's arguments that name sites."""
        return [
            argument for argument in self.params if argument.param_type_name == "argument" and argument.metavar in SITES
        ]

    def _add_default_site(self, ctx: Any, args: list[str]) -> list[str]:
        """Prepend the argument `.`, the site of the options, if the command needs a site and the user named none."""
        if not self._site_arguments:
            return args
        arguments = [argument for argument in self.params if argument.param_type_name == "argument"]
        parsed, rest, _ = self.make_parser(ctx).parse_args(list(args))
        values: list[str] = []
        for argument in arguments:
            value = parsed.get(argument.name)
            values += [] if value is None else [value] if isinstance(value, str) else value
        values += rest
        fixed = [argument for argument in arguments if argument.nargs == 1]
        has_room = len(values) < len(fixed) or len(fixed) < len(arguments)
        said = parsed.get(f"{PARAMETER_PREFIX}site")
        if said is not None:
            named = values[: min(2, len(self._site_arguments))]
            if named and all(map(is_site_name, named)) and (len(self._site_arguments) == 1 or len(named) > 1):
                ctx.fail(
                    f"{named[0]} and --site {said} both name {self._site_arguments[0].metavar}: leave out one of them"
                )
            return [HERE, *args]
        is_named = bool(values) and is_site_name(values[0])
        if not is_named and any(f"{PARAMETER_PREFIX}{option}" in parsed for option in ("profile", "region", "local")):
            return [HERE, *args] if has_room else args
        lacks = len(values) < 1 + sum(argument.required for argument in arguments)
        return [HERE, *args] if lacks and not is_named and not ctx.resilient_parsing else args


class LocalSiteCommand(SiteCommand):
    """A command about sites of the embedded cloud, which has no profiles."""

    common_options = "site", "region", "local", "stage"


class FileCommand(SiteCommand):
    """A command about sites that a file names. The options apply if the file names no profile, region or stage."""

    common_options = "profile", "region", "local", "stage"


class SiteGroup(ShortHelp, TyperGroup):
    """A group of commands that shows help for `-h` as well as for `--help`."""


class SiteCommands(typer.Typer):
    """A typer application whose commands have the common site options, except commands of class `PlainCommand`."""

    def __init__(self) -> None:
        """Create the group with the same typer settings as all other groups."""
        super().__init__(cls=SiteGroup, **SETTINGS)

    def command(
        self,
        name: str | None = None,
        *,
        cls: type[TyperCommand] | None = None,
        json: bool = True,
        quiet: bool = False,
        **options: Any,
    ) -> Callable[[F], F]:
        """Register a command, as typer does. The command's parameter of type `SiteOptions` gets the site options.

        `json` and `quiet` add the options `--json` and `--quiet`.
        """
        command_class = cls or SiteCommand
        register = super().command(name, cls=command_class, **options)
        output = {"quiet": Quiet} if quiet else {}
        output |= {"as_json": AsJson} if json else {}
        common_options = command_class.common_options if issubclass(command_class, SiteCommand) else ()

        def decorate(callback: F) -> F:
            register(_with_options(callback, common_options, output))
            return callback

        return decorate


def _with_options(
    callback: Callable[..., Any], common_options: Sequence[str], output: Mapping[str, Any]
) -> Callable[..., Any]:
    """Wrap a command's function, and add the options in `output` and `common_options` to its parameters."""
    own = signature(callback)
    site_parameters = [name for name, parameter in own.parameters.items() if parameter.annotation is SiteOptions]

    @wraps(callback)
    def run_with_options(*given: Any, **options: Any) -> Any:
        given_options = SiteOptions(**{name: options.pop(PARAMETER_PREFIX + name) for name in common_options})
        output_options = {name: options.pop(name, False) for name in ("as_json", "quiet")}
        with use_site_options(given_options), use_output_options(**output_options):
            return callback(*given, **options, **dict.fromkeys(site_parameters, given_options))

    kept = [parameter for name, parameter in own.parameters.items() if name not in site_parameters]
    annotations = {PARAMETER_PREFIX + name: OPTIONS[name] for name in common_options}
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=of) for name, of in output.items()]
    added += [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=of) for name, of in annotations.items()]
    run_with_options.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]  # inspect reads it
    run_with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in [*kept, *added]}
    return run_with_options


def add_local_value(arguments: list[str]) -> list[str]:
    """Insert a default value after every `--local` without a value, because typer has no options with optional values.

    The argument after `--local` is its value if it begins like a site of the embedded cloud. Arguments after `--` are
    another program's and stay as they are.
    """
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    extended: list[str] = []
    for argument, following in zip_longest(own, own[1:], fillvalue=""):
        extended.append(argument)
        if argument == "--local" and not re.match(r"[0-9]{12}/", following):
            extended.append(FIRST_SITE)
    return extended + arguments[len(own) :]


def _check_contradictions(ctx: Any, sites: Sequence[Any]) -> None:
    """Raise `UsageError` if an option contradicts another option, or all the sites that the arguments name."""
    options = {PARAMETER_PREFIX + name for name in OPTIONS} & ctx.params.keys()
    given_options = SiteOptions.from_parameters(
        {name: ctx.params[name] for name in options if ctx.get_parameter_source(name).name == "COMMANDLINE"}
    )
    typed_sites: list[str] = [] if given_options.site is None else [given_options.site]
    for site in sites:
        value = ctx.params[site.name]
        typed_sites += [value] if isinstance(value, str) else value or ()
    if given_options.site is not None:  # The argument `.` means the site of the options.
        typed_sites = [text for text in typed_sites if text != HERE]
    named = {
        text: ParsedSiteName.parse(text) for text in typed_sites if text == given_options.site or is_site_name(text)
    }
    against = [*_find_contradictions(given_options, named)] if given_options.local is not None else []
    for option in ("profile", "region", "stage"):
        value = getattr(given_options, option)
        others = [
            text
            for text, name in named.items()
            if getattr(name, option) not in {None, value} or (option == "profile" and name.is_local)
        ]
        if value is not None and others and len(others) == len(named):
            against.append((others[0], f"--{option} {value}"))
    for one, other in against:
        ctx.fail(f"{one} and {other} contradict each other: leave out one of them")


def _find_contradictions(options: SiteOptions, named: Mapping[str, ParsedSiteName]) -> Iterator[tuple[str, str]]:
    """Yield pairs of options and site names that contradict each other, such as `--local` and `--profile prod`."""
    place = None if options.local == FIRST_SITE else Site.parse(options.local or "")
    local = "--local" if place is None else f"--local {place}"
    if options.profile is not None:
        yield local, f"--profile {options.profile}"
    if place is not None and options.region not in {None, place.region}:
        yield local, f"--region {options.region}"
    if place is not None and place.stage is not None and options.stage not in {None, place.stage}:
        yield local, f"--stage {options.stage}"
    for text, name in named.items():
        pairs = [] if place is None else [(getattr(name, name_part), getattr(place, name_part)) for name_part in PLACE]
        if name.profile is not None or any(None not in pair and len(set(pair)) > 1 for pair in pairs):
            yield text, local
