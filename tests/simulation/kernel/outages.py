"""Sites that can't be reached for a while: whose calls fail then, and how. Nobody's call is done meanwhile."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore.exceptions import EndpointConnectionError

from tests.simulation.models.errors import ServiceError

if TYPE_CHECKING:
    from tests.simulation.kernel.world import Site, World

CONNECT_S = 2.0


class Answer(StrEnum):
    """What a site that is away answers."""

    NONE = "none"
    UNAVAILABLE = "unavailable"
    REFUSED = "refused"  # only others: it is the site's policies that are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A site is away up to a time: for all, or `to_others` alone."""

    until_s: float
    answer: Answer
    to_others: bool


class Outages:
    """Those of a world."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.by_site: dict[tuple[str, str], Outage] = {}  # by region and account

    def begin(self, site: "Site", outage: Outage) -> None:
        """Let a site be away."""
        self.by_site[site.region, site.account] = outage
        self.world.scheduler.say("outage", (site.region, outage.answer.value, outage.to_others))

    def reach(self, parameters: Mapping[str, Any]) -> None:
        """Raise what a call gets that goes to a site that is away."""
        here = self.world.site
        at = _place(parameters.get("QueueUrl", "")) or (here.region, here.account)
        outage = self.by_site.get(at)
        if outage is None or self.world.now >= outage.until_s:
            return
        is_own = at == (here.region, here.account)
        if is_own and (outage.to_others or outage.answer is Answer.REFUSED):
            return
        match outage.answer:
            case Answer.NONE:
                self.world.scheduler.pause(CONNECT_S)
                raise EndpointConnectionError(endpoint_url=f"https://sqs.{at[0]}.amazonaws.com")
            case Answer.UNAVAILABLE:
                raise ServiceError("ServiceUnavailable", "Service unavailable", status=503)
            case Answer.REFUSED:
                raise ServiceError("AccessDenied", "Access to the resource is denied.", status=403)


@lru_cache(maxsize=1_000)
def _place(url: str) -> tuple[str, str] | None:
    """Find region and account in a queue's URL."""
    parts = urlsplit(url)
    if not parts.hostname:
        return None
    return parts.hostname.split(".")[1], parts.path.split("/")[1]
