"""Commands about sites: the options that all of them have, how these and a named site go together, and what is refused.

What a site is called, and how it is reached, is in `sluice.cli.site_names`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from itertools import zip_longest
from typing import Annotated, Any, ClassVar, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from sluice.cli.completion import complete_local, complete_profiles, complete_sites
from sluice.cli.output import AsJson, Quiet, spoken
from sluice.cli.terminal import SETTINGS, ShortHelp
from sluice.local.sites import Site
from sluice.operator.site_names import FIRST_SITE, HERE, PARAMETER, SiteOptions, WrittenName, is_site, with_options
from sluice.stages import STAGE, is_stage

F = TypeVar("F", bound=Callable[..., Any])

SITES = "SITE", "DEST", "SRC", "PEER"  # what arguments that name sites are called; the first is the command's site
PLACE = "account", "region", "stage"


def parse_stage(text: str) -> str | None:
    """Read a stage's name; an empty text, as a variable may be, is none."""
    if text and not is_stage(text):
        raise typer.BadParameter(f"{text!r} is no stage: {STAGE}, and not sluice")
    return text or None


Stage = Annotated[
    str | None,
    typer.Option(
        "--stage",
        parser=parse_stage,
        metavar="STAGE",
        envvar="SLUICE_STAGE",
        help="The site of this stage, where several are in one account and region.",
    ),
]
Region = Annotated[
    str | None, typer.Option("--region", metavar="REGION", help="AWS region, else the environment's or the profile's.")
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="PROFILE", help="AWS profile, else the environment's.", autocompletion=complete_profiles
    ),
]
# In the order of --help; by the names of `SiteOptions`.
OPTIONS: Mapping[str, Any] = {
    "site": Annotated[
        str | None,
        typer.Option(
            "--site",
            metavar="SITE",
            help="REGION, PROFILE@REGION, ACCOUNT/REGION of the embedded cloud, or a site's name; :STAGE after it.",
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
            help="The embedded cloud in place of AWS: this site, else the one of --region, else the first.",
            autocompletion=complete_local,
        ),
    ],
    "stage": Stage,
}

SiteText = Annotated[
    str,
    typer.Argument(
        metavar="SITE",
        help="As --site has it. Where it is left out options say it, or the environment.",
        autocompletion=complete_sites,
    ),
]
DestText = Annotated[
    str,
    typer.Argument(
        metavar="DEST", help="The site that messages go to, as SITE elsewhere.", autocompletion=complete_sites
    ),
]
SrcText = Annotated[
    str, typer.Argument(metavar="SRC", help="The site that they come from.", autocompletion=complete_sites)
]


class PlainCommand(ShortHelp, TyperCommand):
    """A command that isn't about a site."""


class SiteCommand(PlainCommand):
    """A command about sites. Its `--local` may stand without a value, and its first site may be left out."""

    common: ClassVar[Sequence[str]] = tuple(OPTIONS)

    def __init__(self, *given: Any, **settings: Any) -> None:
        """Make it as typer does; its help has arguments in capitals, and that its first site may be left out."""
        super().__init__(*given, **settings)
        for each in self.params:
            if each.param_type_name == "argument":
                each.metavar = each.metavar or each.name.upper()
        for first in self._sites[:1]:
            first.required = False
            first.default = HERE if first.nargs == 1 else [HERE]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, with what was left out put in. Raises `UsageError` where options and names contradict each other."""
        rest = super().parse_args(ctx, self._with_site(ctx, with_first_site(args)))
        if not ctx.resilient_parsing:
            _check(ctx, self._sites)
        return rest

    @property
    def _sites(self) -> Sequence[Any]:
        """Its arguments that name sites."""
        return [each for each in self.params if each.param_type_name == "argument" and each.metavar in SITES]

    def _with_site(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `.` before the arguments where the first is to be a site and isn't one."""
        if not self._sites:
            return args
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        parsed, rest, _ = self.make_parser(ctx).parse_args(list(args))
        given: list[str] = []
        for each in arguments:
            value = parsed.get(each.name)
            given += [] if value is None else [value] if isinstance(value, str) else value
        given += rest
        fixed = [each for each in arguments if each.nargs == 1]
        has_room = len(given) < len(fixed) or len(fixed) < len(arguments)
        said = parsed.get(f"{PARAMETER}site")
        if said is not None:
            named = given[: min(2, len(self._sites))]
            if named and all(map(is_site, named)) and (len(self._sites) == 1 or len(named) > 1):
                ctx.fail(f"{named[0]} and --site {said} are both the {self._sites[0].metavar}: say one of them")
            return [HERE, *args]
        is_named = bool(given) and is_site(given[0])
        if not is_named and any(f"{PARAMETER}{option}" in parsed for option in ("profile", "region", "local")):
            return [HERE, *args] if has_room else args
        lacks = len(given) < 1 + sum(each.required for each in arguments)
        return [HERE, *args] if lacks and not is_named and not ctx.resilient_parsing else args


class CloudCommand(SiteCommand):
    """A command about sites of the embedded cloud, where no profile leads to."""

    common = "site", "region", "local", "stage"


class FileCommand(SiteCommand):
    """A command about sites that a file names; what it leaves open the options say."""

    common = "profile", "region", "local", "stage"


class SiteGroup(ShortHelp, TyperGroup):
    """A group of commands."""


class SiteTyper(typer.Typer):
    """Commands about sites, with the options of all; one that isn't about sites is of class `PlainCommand`."""

    def __init__(self) -> None:
        """Make it as typer does."""
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
        """Register a command, as typer does. It gets what the options say by a parameter of type `SiteOptions`.

        Unless it prints no `json` it has the option `--json`, and where it may be `quiet` the option `--quiet`.
        """
        made = cls or SiteCommand
        register = super().command(name, cls=made, **options)
        speech = {"quiet": Quiet} if quiet else {}
        speech |= {"as_json": AsJson} if json else {}
        common = made.common if issubclass(made, SiteCommand) else ()

        def registered(callback: F) -> F:
            register(_with_options(callback, common, speech))
            return callback

        return registered


def _with_options(callback: Callable[..., Any], common: Sequence[str], speech: Mapping[str, Any]) -> Callable[..., Any]:
    """Add options to a command's own: what it prints, and the `common` ones about sites."""
    own = signature(callback)
    wanted = [name for name, parameter in own.parameters.items() if parameter.annotation is SiteOptions]

    @wraps(callback)
    def at_site(*given: Any, **options: Any) -> Any:
        said = SiteOptions(**{name: options.pop(PARAMETER + name) for name in common})
        asked = {name: options.pop(name, False) for name in ("as_json", "quiet")}
        with with_options(said), spoken(**asked):
            return callback(*given, **options, **dict.fromkeys(wanted, said))

    kept = [parameter for name, parameter in own.parameters.items() if name not in wanted]
    annotations = {PARAMETER + name: OPTIONS[name] for name in common}
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=of) for name, of in speech.items()]
    added += [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=of) for name, of in annotations.items()]
    at_site.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]  # which inspect reads
    at_site.__annotations__ = {parameter.name: parameter.annotation for parameter in [*kept, *added]}
    return at_site


def with_first_site(arguments: list[str]) -> list[str]:
    """Give the arguments with a value after every `--local`: what begins as a site of the embedded cloud does is one.

    What follows a `--` is another program's.
    """
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    said: list[str] = []
    for argument, following in zip_longest(own, own[1:], fillvalue=""):
        said.append(argument)
        if argument == "--local" and not re.match(r"[0-9]{12}/", following):
            said.append(FIRST_SITE)
    return said + arguments[len(own) :]


def _check(ctx: Any, sites: Sequence[Any]) -> None:
    """Raise `UsageError` where an option contradicts another one, or all sites that are named."""
    options = {PARAMETER + name for name in OPTIONS} & ctx.params.keys()
    said = SiteOptions.of_parameters(
        {name: ctx.params[name] for name in options if ctx.get_parameter_source(name).name == "COMMANDLINE"}
    )
    texts: list[str] = [] if said.site is None else [said.site]
    for each in sites:
        value = ctx.params[each.name]
        texts += [value] if isinstance(value, str) else value or ()
    if said.site is not None:  # which is what `.` means
        texts = [text for text in texts if text != HERE]
    named = {text: WrittenName.read(text) for text in texts if text == said.site or is_site(text)}
    against = [*_against_local(said, named)] if said.local is not None else []
    for option in ("profile", "region", "stage"):
        value = getattr(said, option)
        others = [
            text
            for text, name in named.items()
            if getattr(name, option) not in {None, value} or (option == "profile" and name.is_local)
        ]
        if value is not None and others and len(others) == len(named):
            against.append((others[0], f"--{option} {value}"))
    for one, other in against:
        ctx.fail(f"{one} and {other} contradict each other: leave out one of them")


def _against_local(said: SiteOptions, named: Mapping[str, WrittenName]) -> Iterator[tuple[str, str]]:
    """Yield what contradicts `--local`: where that names a site all others have to be that one."""
    place = None if said.local == FIRST_SITE else Site.parse(said.local or "")
    local = "--local" if place is None else f"--local {place}"
    if said.profile is not None:
        yield local, f"--profile {said.profile}"
    if place is not None and said.region not in {None, place.region}:
        yield local, f"--region {said.region}"
    if place is not None and place.stage is not None and said.stage not in {None, place.stage}:
        yield local, f"--stage {said.stage}"
    for text, name in named.items():
        pairs = [] if place is None else [(getattr(name, each), getattr(place, each)) for each in PLACE]
        if name.profile is not None or any(None not in pair and len(set(pair)) > 1 for pair in pairs):
            yield text, local
