"""Where a deployment goes: one region of one account. Parsed from `ACCOUNT/REGION`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluice.errors import BadConfiguration

SITE = re.compile(r"(\d{12})/([a-z]{2}(?:-[a-z]+)+-\d)")


class BadSite(BadConfiguration):
    """A text that names no site."""


@dataclass(frozen=True, slots=True)
class Site:
    """One region of one account."""

    account: str
    region: str

    @classmethod
    def parse(cls, text: str) -> "Site":
        """From `ACCOUNT/REGION`. Raises `BadSite`."""
        found = SITE.fullmatch(text)
        if not found:
            raise BadSite(f"{text!r} is not a site: twelve digits, a slash, a region, as in 000000000000/eu-central-1")
        return cls(found[1], found[2])

    def __str__(self) -> str:
        return f"{self.account}/{self.region}"


DEFAULT_SITE = Site("000000000000", "eu-central-1")


def to_deploy(deployed: Sequence[Site], wanted: Sequence[Site]) -> tuple[Site, ...]:
    """Choose the sites to deploy: those wanted, and where they bring a new account, all that have to let it in."""
    accounts = {site.account for site in deployed}
    are_known = not deployed or all(site.account in accounts for site in wanted)
    return tuple(dict.fromkeys((*wanted, *(() if are_known else deployed))))


def peer_accounts(sites: Iterable[Site]) -> list[str]:
    """List the accounts whose sites let each other in; none where all are of one, which needs nothing."""
    accounts = sorted({site.account for site in sites})
    return accounts if len(accounts) > 1 else []
