"""Sites of the embedded cloud: one region of one account, one stage, written as `ACCOUNT/REGION` or `…:STAGE`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluice.errors import BadConfiguration
from sluice.stages import STAGE, is_stage

SITE = re.compile(rf"(\d{{12}})/([a-z]{{2}}(?:-[a-z]+)+-\d)(?::({STAGE}))?")


class BadSite(BadConfiguration):
    """A site's name is malformed."""


@dataclass(frozen=True, slots=True)
class Site:
    """A site of the embedded cloud: an account, a region, and perhaps a stage."""

    account: str
    region: str
    stage: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Site":
        """Parse `ACCOUNT/REGION` or `ACCOUNT/REGION:STAGE`. Raises `BadSite`."""
        match = SITE.fullmatch(text)
        if not match or (match[3] is not None and not is_stage(match[3])):
            raise BadSite(f"{text!r} is not a site: twelve digits, a slash, a region, as in 000000000000/eu-central-1")
        return cls(match[1], match[2], match[3])

    def __str__(self) -> str:
        return f"{self.account}/{self.region}" + (f":{self.stage}" if self.stage else "")


DEFAULT_SITE = Site("000000000000", "eu-central-1")


def sites_to_deploy(deployed: Sequence[Site], requested: Sequence[Site]) -> tuple[Site, ...]:
    """Return the sites to deploy: the wanted sites, and all deployed sites if an account or a stage is new to them."""
    accounts, stages = {site.account for site in deployed}, {site.stage for site in deployed}
    are_known = not deployed or all(site.account in accounts and site.stage in stages for site in requested)
    return tuple(dict.fromkeys((*requested, *(() if are_known else deployed))))


def peer_accounts(sites: Iterable[Site]) -> list[str]:
    """List the accounts whose sites can be each other's peers; empty if all sites are in one account."""
    accounts = sorted({site.account for site in sites})
    return accounts if len(accounts) > 1 else []


def peer_stages(sites: Iterable[Site]) -> list[str]:
    """List the sites' stages for `federation.peer_stages` ("": no stage); empty if one stage has all sites."""
    stages = sorted({site.stage or "" for site in sites})
    return stages if len(stages) > 1 else []
