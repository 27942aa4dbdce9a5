"""What a site is called, and what a command's options say of it: one value that connects to it."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

from sluice.aws.connections import Connection, account_of, of_environment, of_user, profiles
from sluice.errors import BadConfiguration
from sluice.local.cloud import Cloud, CloudFailed, find
from sluice.local.sites import DEFAULT_SITE, SITE, Site
from sluice.stages import STAGE, is_stage

HERE = "."  # the site that the options mean, where an argument is to name one
FIRST_SITE = "first"  # what --local means where it stands alone
PARAMETER = "site_"  # what the options' parameters begin with: commands have a `site` and a `region` of their own

_REGION = r"[a-z]{2}(?:-[a-z]+)+-\d"
REGION = re.compile(_REGION)
# A site is called by where it is, unless federation.tag says otherwise; a stage leaves no room for a region's hyphens.
_NAME = re.compile(rf"({_REGION})-(\d{{12}})")
_NAME_WITH_STAGE = re.compile(
    rf"({STAGE})-(\d{{12}})([a-z]{{2}})(gov|iso[a-z]?)?((?:north|south)?(?:east|west)?|central)(\d)"
)


class BadSiteName(BadConfiguration):
    """A text that names no site."""


class OtherAccount(BadConfiguration):
    """The credentials are of another account than the one that was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenName:
    """What a site's name says, None for what it doesn't say. An account may be one of the embedded cloud."""

    region: str | None = None
    profile: str | None = None
    account: str | None = None
    stage: str | None = None
    is_local: bool = False

    @classmethod
    def read(cls, text: str) -> "WrittenName":
        """Read REGION, PROFILE@REGION, ACCOUNT/REGION, each with :STAGE, or alone that, or a site's own name.

        Raises `BadSiteName`.
        """
        if text == HERE:
            return cls()
        if named := _NAME.fullmatch(text):
            return cls(region=named[1], account=named[2])
        if named := _NAME_WITH_STAGE.fullmatch(text):
            return cls(stage=named[1], account=named[2], region="-".join(filter(None, named.groups()[2:])))
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


def is_site(text: str) -> bool:
    """Tell whether a text can be nothing but a site's name."""
    try:
        WrittenName.read(text)
    except BadSiteName:
        return False
    return True


@dataclass(frozen=True, slots=True)
class SiteName:
    """Where a site is, and with which credentials it is asked: a profile's, the embedded cloud's, or the user's.

    Without a region it is boto3 that finds one, or none. An `account` is one that the credentials have to be of.
    """

    region: str | None
    profile: str | None = None
    local_account: str | None = None
    stage: str | None = None
    account: str | None = None

    @classmethod
    def parse(cls, text: str) -> "SiteName":
        """Read a name; what it leaves open the options of the command say. Raises `BadSiteName`, or `CloudFailed`."""
        return options_said().named(text)

    def __str__(self) -> str:
        stage = f":{self.stage}" if self.stage else ""
        if self.local_account is not None:
            return f"{self.local_account}/{self.region}{stage}"
        return (f"{self.profile}@{self.region}" if self.profile and self.region else self.region or HERE) + stage

    def beside(self, region: str, account: str, *, of_account: str, stage: str | None = None) -> "SiteName | None":
        """Another site as it can be asked by who asks this one, `of_account`; None where it can't be."""
        if self.local_account is not None:
            return SiteName(region, local_account=account, stage=stage)
        return SiteName(region, profile=self.profile, stage=stage) if account == of_account else None

    def connect(self) -> Connection:
        """Connect to the site. Raises a `BadConfiguration` or `CloudFailed` that says what to do."""
        if self.local_account is not None and self.region is not None:
            site = Site(self.local_account, self.region, self.stage)
            return of_environment(_needed(_found()).environment(site), stage=site.stage)
        connection = of_user(region=self.region, profile=self.profile, stage=self.stage)
        if self.account is not None and (account := account_of(connection)) != self.account:
            raise OtherAccount(f"the credentials are of account {account}, not {self.account}: pass another --profile")
        return connection


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOptions:
    """What a command's options say of its sites; what they don't say the environment does. A name's own words win."""

    site: str | None = None
    profile: str | None = None
    region: str | None = None
    local: str | None = None  # FIRST_SITE where it stands alone
    stage: str | None = None

    @classmethod
    def of_parameters(cls, given: Mapping[str, Any]) -> "SiteOptions":
        """Take them out of all that a command was given."""
        return cls(**{each.name: given.get(PARAMETER + each.name) for each in fields(cls)})

    @property
    def is_local(self) -> bool:
        """Whether the site is one of the embedded cloud."""
        return self.named().local_account is not None

    def connect(self) -> Connection:
        """Connect to the site that they mean. Raises a `BadConfiguration` or `CloudFailed` that says what to do."""
        return self.named().connect()

    def named(self, text: str = HERE, *, running: Callable[[], Cloud | None] | None = None) -> SiteName:
        """Complete a site's name, of the embedded cloud by what is `running`.

        Raises `BadSiteName`, or `CloudFailed` where an embedded cloud would have to run.
        """
        running = running or _found
        written = WrittenName.read(self.site if text == HERE and self.site is not None else text)
        place = Site.parse(self.local) if self.local not in {None, FIRST_SITE} else None
        region = written.region or (place.region if place else self.region)
        stage = written.stage or (place.stage if place else None) or self.stage
        is_local = written.is_local or (self.local is not None and written.profile is None)
        account = written.account or (place.account if place else None)
        if not is_local and account is not None and region is not None:
            cloud = running()
            is_local = cloud is not None and Site(account, region, stage) in cloud.sites
        if not is_local:
            profile = written.profile or self.profile
            return SiteName(region or region_of(profile), profile=profile, stage=stage, account=account)
        if account is not None and region is not None:
            return SiteName(region, local_account=account, stage=stage)
        site = _deployed(_needed(running()), region, stage)
        return SiteName(site.region, local_account=site.account, stage=site.stage)


_options: ContextVar[SiteOptions | None] = ContextVar("options", default=None)


def options_said() -> SiteOptions:
    """Give what the options of the command that runs say."""
    return _options.get() or SiteOptions()


@contextmanager
def with_options(options: SiteOptions) -> Iterator[None]:
    """Have names of sites completed by these options."""
    before = _options.set(options)
    try:
        yield
    finally:
        _options.reset(before)


def region_of(profile: str | None) -> str | None:
    """Find the region of the environment, or of the profile; None where neither says it, and boto3 has to look."""
    said = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return said or profiles().get(profile or os.environ.get("AWS_PROFILE") or "default")


def _found() -> Cloud | None:
    return find()


def _needed(cloud: Cloud | None) -> Cloud:
    if cloud is None:
        raise CloudFailed("no embedded cloud runs here: start it with `sluice local up`")
    return cloud


def _deployed(cloud: Cloud, region: str | None, stage: str | None) -> Site:
    """Find the site that is in this region and of this stage; of any, the first."""
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
