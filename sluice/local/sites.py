"""Where a deployment goes: one region of one account, one stage. Parsed from `ACCOUNT/REGION` or `…:STAGE`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluice.errors import BadConfiguration
from sluice.stages import STAGE, is_stage

SITE = re.compile(rf"(\d{{12}})/([a-z]{{2}}(?:-[a-z]+)+-\d)(?::({STAGE}))?")


class BadSite(BadConfiguration):
    """A text that names no site."""


@dataclass(frozen=True, slots=True)
class Site:
    """One region of one account; `stage` where there are several sites in it."""

    account: str
    region: str
    stage: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Site":
        """From `ACCOUNT/REGION` or `ACCOUNT/REGION:STAGE`. Raises `BadSite`."""
        found = SITE.fullmatch(text)
        if not found or (found[3] is not None and not is_stage(found[3])):
            raise BadSite(f"{text!r} is not a site: twelve digits, a slash, a region, as in 000000000000/eu-central-1")
        return cls(found[1], found[2], found[3])

    def __str__(self) -> str:
        return f"{self.account}/{self.region}" + (f":{self.stage}" if self.stage else "")


DEFAULT_SITE = Site("000000000000", "eu-central-1")


def to_deploy(deployed: Sequence[Site], wanted: Sequence[Site]) -> tuple[Site, ...]:
    """Choose the sites to deploy: those wanted, and all that have to let in the account or stage that they bring."""
    accounts, stages = {site.account for site in deployed}, {site.stage for site in deployed}
    are_known = not deployed or all(site.account in accounts and site.stage in stages for site in wanted)
    return tuple(dict.fromkeys((*wanted, *(() if are_known else deployed))))


def peer_accounts(sites: Iterable[Site]) -> list[str]:
    """List the accounts whose sites let each other in; none where all are of one, which needs nothing."""
    accounts = sorted({site.account for site in sites})
    return accounts if len(accounts) > 1 else []


def peer_stages(sites: Iterable[Site]) -> list[str]:
    """List the stages whose sites let each other in, with an empty one for none; nothing where all are of one."""
    stages = sorted({site.stage or "" for site in sites})
    return stages if len(stages) > 1 else []
