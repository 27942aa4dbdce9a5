"""Parses sites' names, completes the names from a command's options, and connects to the sites."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

from sluice.aws.connections import Connection, connect_environment, connect_user, fetch_account, list_profiles
from sluice.errors import BadConfiguration
from sluice.local.cloud import Cloud, CloudFailed, find_cloud, require_running
from sluice.local.sites import DEFAULT_SITE, SITE, Site
from sluice.stages import STAGE, is_stage

HERE = "."  # On the command line, this argument stands for the site that the options select.
FIRST_SITE = "first"  # The option --local has this value if the user gives none.
PARAMETER_PREFIX = "site_"  # The prefix avoids conflicts with commands' own parameters, such as `site` and `region`.

_REGION = r"[a-z]{2}(?:-[a-z]+)+-\d"
REGION = re.compile(_REGION)
# A site's default tag is its region and account, or its stage, account and region without hyphens.
_NAME = re.compile(rf"({_REGION})-(\d{{12}})")
_NAME_WITH_STAGE = re.compile(
    rf"({STAGE})-(\d{{12}})([a-z]{{2}})(gov|iso[a-z]?)?((?:north|south)?(?:east|west)?|central)(\d)"
)


class BadSiteName(BadConfiguration):
    """Raised if a text is not a site's name."""


class WrongAccount(BadConfiguration):
    """Raised if the credentials belong to another account than the one in the site's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSiteName:
    """The parts of a site's name; None for parts that the name omits. `is_local` means: in the embedded cloud."""

    region: str | None = None
    profile: str | None = None
    account: str | None = None
    stage: str | None = None
    is_local: bool = False

    @classmethod
    def parse(cls, text: str) -> "ParsedSiteName":
        """Parse REGION, PROFILE@REGION or ACCOUNT/REGION, each with or without :STAGE; or only :STAGE; or a site's tag.

        Raises `BadSiteName`.
        """
        if text == HERE:
            return cls()
        if match := _NAME.fullmatch(text):
            return cls(region=match[1], account=match[2])
        if match := _NAME_WITH_STAGE.fullmatch(text):
            return cls(stage=match[1], account=match[2], region="-".join(filter(None, match.groups()[2:])))
        place, colon, stage = text.rpartition(":")
        if not colon:
            place, stage = text, ""
        if colon and not is_stage(stage):
            raise BadSiteName(f"{text!r} is no site: {stage!r} is no stage")
        if colon and not place:
            return cls(stage=stage)
        if local := SITE.fullmatch(place):
            return cls(account=local[1], region=local[2], stage=stage or None, is_local=True)
        profile, at, region = place.rpartition("@")
        if not REGION.fullmatch(region) or bool(at) != bool(profile):
            raise BadSiteName(
                f"{text!r} is no site: REGION, PROFILE@REGION, ACCOUNT/REGION of the embedded cloud, or a site's name"
            )
        return cls(region=region, profile=profile or None, stage=stage or None)


def is_site_name(text: str) -> bool:
    """Return whether a text is a valid site name."""
    try:
        ParsedSiteName.parse(text)
    except BadSiteName:
        return False
    return True


@dataclass(frozen=True, slots=True)
class SiteName:
    """A site's location, and its credentials: an AWS profile's, the embedded cloud's, or the user's default ones.

    Without a region boto3 chooses one. If `account` is set, the credentials must belong to that account.
    """

    region: str | None
    profile: str | None = None
    local_account: str | None = None
    stage: str | None = None
    account: str | None = None

    @classmethod
    def parse(cls, text: str) -> "SiteName":
        """Parse a site's name and complete it from the command's options. Raises `BadSiteName` or `CloudFailed`."""
        return get_site_options().resolve(text)

    def __str__(self) -> str:
        stage = f":{self.stage}" if self.stage else ""
        if self.local_account is not None:
            return f"{self.local_account}/{self.region}{stage}"
        return (f"{self.profile}@{self.region}" if self.profile and self.region else self.region or HERE) + stage

    def find_peer(self, region: str, account: str, *, own_account: str, stage: str | None = None) -> "SiteName | None":
        """Return a peer's name; None if this site's credentials, for account `own_account`, can't reach the peer."""
        if self.local_account is not None:
            return SiteName(region, local_account=account, stage=stage)
        return SiteName(region, profile=self.profile, stage=stage) if account == own_account else None

    def connect(self) -> Connection:
        """Connect to the site with this name. Raises a `BadConfiguration` or `CloudFailed` that says what to do."""
        if self.local_account is not None and self.region is not None:
            site = Site(self.local_account, self.region, self.stage)
            return connect_environment(require_running(find_cloud()).environment(site), stage=site.stage)
        connection = connect_user(region=self.region, profile=self.profile, stage=self.stage)
        if self.account is not None and (account := fetch_account(connection)) != self.account:
            raise WrongAccount(f"the credentials are of account {account}, not {self.account}: pass another --profile")
        return connection


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOptions:
    """A command's options that select a site. Site names override options, which override environment variables."""

    site: str | None = None
    profile: str | None = None
    region: str | None = None
    local: str | None = None  # The value is FIRST_SITE if the option --local has no argument.
    stage: str | None = None

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> "SiteOptions":
        """Create the site options from a command's parameters, whose names begin with `site_`."""
        return cls(**{option.name: parameters.get(PARAMETER_PREFIX + option.name) for option in fields(cls)})

    @property
    def is_local(self) -> bool:
        """Whether the selected site is on the embedded cloud (the local AWS emulator)."""
        return self.resolve().local_account is not None

    def connect(self) -> Connection:
        """Connect to the site of the options. Raises a `BadConfiguration` or `CloudFailed` that says what to do."""
        return self.resolve().connect()

    def resolve(self, text: str = HERE, *, find_running_cloud: Callable[[], Cloud | None] | None = None) -> SiteName:
        """Complete a site's name from the options. `find_running_cloud` finds the embedded cloud.

        Raises `BadSiteName`, or `CloudFailed` if the site needs the embedded cloud and it isn't running.
        """
        find_running_cloud = find_running_cloud or find_cloud
        parsed = ParsedSiteName.parse(self.site if text == HERE and self.site is not None else text)
        place = Site.parse(self.local) if self.local not in {None, FIRST_SITE} else None
        region = parsed.region or (place.region if place else self.region)
        stage = parsed.stage or (place.stage if place else None) or self.stage
        is_local = parsed.is_local or (self.local is not None and parsed.profile is None)
        account = parsed.account or (place.account if place else None)
        if not is_local and account is not None and region is not None:
            cloud = find_running_cloud()
            is_local = cloud is not None and Site(account, region, stage) in cloud.sites
        if not is_local:
            profile = parsed.profile or self.profile
            return SiteName(region or find_default_region(profile), profile=profile, stage=stage, account=account)
        if account is not None and region is not None:
            return SiteName(region, local_account=account, stage=stage)
        site = _find_deployed_site(require_running(find_running_cloud()), region, stage)
        return SiteName(site.region, local_account=site.account, stage=site.stage)


_options: ContextVar[SiteOptions | None] = ContextVar("options", default=None)


def get_site_options() -> SiteOptions:
    """Return the site options of the running command."""
    return _options.get() or SiteOptions()


@contextmanager
def use_site_options(options: SiteOptions) -> Iterator[None]:
    """Complete sites' names from these options while the context is open."""
    before = _options.set(options)
    try:
        yield
    finally:
        _options.reset(before)


def find_default_region(profile: str | None) -> str | None:
    """Return the AWS region that environment variables or the profile set; None if neither does, and boto3 chooses."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return region or list_profiles().get(profile or os.environ.get("AWS_PROFILE") or "default")


def _find_deployed_site(cloud: Cloud, region: str | None, stage: str | None) -> Site:
    """Find the embedded cloud's site with this region and stage. Without a region, return its first matching site."""
    sites = [site for site in cloud.sites if region in {None, site.region} and stage in {None, site.stage}]
    if region is None:
        if not sites:
            which = f"no site of stage {stage}" if stage else "nothing"
            raise CloudFailed(f"{which} is deployed to the embedded cloud: `sluice local up` does it")
        return sites[0]
    exact = [site for site in sites if site.stage == stage]
    if len(exact or sites) > 1:
        raise BadSiteName(f"{region} is several sites of the embedded cloud: say which of {', '.join(map(str, sites))}")
    return (exact or sites or [Site(DEFAULT_SITE.account, region, stage)])[0]
