"""Which site a command is about: the options that all commands have, and the connection that they mean."""

import re
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from inspect import Parameter, signature
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from sluice.local.cloud import Cloud, CloudFailed, find
from sluice.local.sites import SITE, Site
from sluice.stages import STAGE, is_stage

if TYPE_CHECKING:  # boto3 is imported where a command connects, so that --help doesn't wait for it
    from sluice.aws.operator.connections import Connection

FIRST_SITE = "first"

F = TypeVar("F", bound=Callable[..., Any])

Region = Annotated[str | None, typer.Option("--region", help="AWS region, else the environment's or the profile's.")]
Profile = Annotated[str | None, typer.Option("--profile", help="AWS profile, else the environment's.")]
Local = Annotated[
    str | None,
    typer.Option(
        "--local",
        metavar="[ACCOUNT/REGION]",
        help="A site of the embedded cloud, the first if not said, in place of AWS.",
    ),
]


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
_stage: ContextVar[str | None] = ContextVar("stage", default=None)


def stage_said() -> str | None:
    """Which stage the command that runs is about, where what names its sites doesn't say."""
    return _stage.get()


class SiteCommand(TyperCommand):
    """A command whose `--local` may stand without a value, which typer has no way to declare."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Says `--local first` where it stands alone."""
        return super().parse_args(ctx, with_first_site(args))


class SiteTyper(typer.Typer):
    """Commands about sites: all of them take `--stage`, those of another class than `SiteCommand` don't."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **options: Any
    ) -> Callable[[F], F]:
        """Register a command, as typer does."""
        made = cls or SiteCommand
        register = super().command(name, cls=made, **options)

        def registered(callback: F) -> F:
            register(_with_stage(callback) if issubclass(made, SiteCommand) else callback)
            return callback

        return registered


def _with_stage(callback: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(callback)
    def at_stage(*given: Any, stage: str | None, **options: Any) -> Any:
        token = _stage.set(stage)
        try:
            return callback(*given, **options)
        finally:
            _stage.reset(token)

    own = signature(callback)
    option = Parameter("stage", Parameter.KEYWORD_ONLY, default=None, annotation=Stage)
    at_stage.__signature__ = own.replace(parameters=[*own.parameters.values(), option])  # type: ignore[attr-defined]  # which inspect reads
    at_stage.__annotations__ = {**callback.__annotations__, "stage": Stage}
    return at_stage


def with_first_site(arguments: list[str]) -> list[str]:
    """Give the arguments with a value after every `--local`; what follows a `--` is another program's."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    said: list[str] = []
    for argument, following in zip_longest(own, own[1:], fillvalue=""):
        said.append(argument)
        if argument == "--local" and (not following or following.startswith("-")):
            said.append(FIRST_SITE)
    return said + arguments[len(own) :]


def connect(*, region: str | None, profile: str | None, local: str | None, stage: str | None = None) -> "Connection":
    """To the site that the options mean. Raises a `BadConfiguration` or `CloudFailed` that says what to do.

    Without a `stage` it is the command's, which for a site of the embedded cloud may stand with that, too.
    """
    from sluice.aws.operator.connections import of_environment, of_user  # noqa: PLC0415 - boto3 takes longer than all of --help

    stage = stage or stage_said()
    if local is None:
        return of_user(region=region, profile=profile, stage=stage)
    if region or profile:
        raise typer.BadParameter("--local names its region and account itself: no --region, no --profile with it")
    cloud = _running()
    site = _site(cloud, local, stage)
    return of_environment(cloud.environment(site), stage=site.stage)


def _running() -> Cloud:
    cloud = find()
    if cloud is None:
        raise CloudFailed("no embedded cloud runs here: start it with `sluice local up`")
    return cloud


def _site(cloud: Cloud, local: str, stage: str | None) -> Site:
    if local == FIRST_SITE:
        found = next((site for site in cloud.sites if stage in {None, site.stage}), None)
        if found is None:
            which = f"no site of stage {stage}" if stage else "nothing"
            raise CloudFailed(f"{which} is deployed to the embedded cloud: `sluice local up` does it")
        return found
    if not re.fullmatch(SITE, local):
        raise typer.BadParameter(f"{local!r} is not ACCOUNT/REGION, as in 000000000000/eu-central-1")
    site = Site.parse(local)
    return site if site.stage or not stage else Site(site.account, site.region, stage)
