"""Which site a command is about: the options that all commands have, and the connection that they mean."""

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from sluice.local.cloud import Cloud, CloudFailed, find
from sluice.local.sites import SITE, Site

if TYPE_CHECKING:  # boto3 is imported where a command connects, so that --help doesn't wait for it
    from sluice.aws.operator.connections import Connection

FIRST_SITE = "first"

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


class SiteCommand(TyperCommand):
    """A command whose `--local` may stand without a value, which typer has no way to declare."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Says `--local first` where it stands alone."""
        return super().parse_args(ctx, with_first_site(args))


def with_first_site(arguments: list[str]) -> list[str]:
    """Give the arguments with a value after every `--local`; what follows a `--` is another program's."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    said: list[str] = []
    for argument, following in zip_longest(own, own[1:], fillvalue=""):
        said.append(argument)
        if argument == "--local" and (not following or following.startswith("-")):
            said.append(FIRST_SITE)
    return said + arguments[len(own) :]


def connect(*, region: str | None, profile: str | None, local: str | None) -> "Connection":
    """To the site that the options mean. Raises a `BadConfiguration` or `CloudFailed` that says what to do."""
    from sluice.aws.operator.connections import of_environment, of_user  # noqa: PLC0415 - boto3 takes longer than all of --help

    if local is None:
        return of_user(region=region, profile=profile)
    if region or profile:
        raise typer.BadParameter("--local names its region and account itself: no --region, no --profile with it")
    cloud = _running()
    return of_environment(cloud.environment(_site(cloud, local)))


def _running() -> Cloud:
    cloud = find()
    if cloud is None:
        raise CloudFailed("no embedded cloud runs here: start it with `sluice local up`")
    return cloud


def _site(cloud: Cloud, local: str) -> Site:
    if local == FIRST_SITE:
        if not cloud.sites:
            raise CloudFailed("nothing is deployed to the embedded cloud: `sluice local up` does it")
        return cloud.sites[0]
    if not re.fullmatch(SITE, local):
        raise typer.BadParameter(f"{local!r} is not ACCOUNT/REGION, as in 000000000000/eu-central-1")
    return Site.parse(local)
