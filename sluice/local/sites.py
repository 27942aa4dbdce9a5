"""Where a deployment goes: one region of one account. Parsed from `ACCOUNT/REGION`."""

import re
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
