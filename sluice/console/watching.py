"""What is watched: readings of sites by topic, questions about them, and what may be done to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sluice.aws.operator.connections import NoConnection
from sluice.aws.operator.deployment import NotDeployed, NotUsable
from sluice.console.sites import Document, Reader, WatchedSite
from sluice.console.topics import Topic
from sluice.errors import BadRequest
from sluice.local.cloud import CloudFailed

T = TypeVar("T")
Asked = Callable[[Any, Mapping[str, Any]], Document]  # a site, and the fields of a form


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLabel:
    """What a page says of a site."""

    name: str
    local: bool


class Watching(Protocol):
    """What the server serves. All of it may block, and raises a `SluiceError` in the command's own words."""

    @property
    def labels(self) -> Sequence[SiteLabel]:
        """The sites, in their order."""

    def read(self, topic: Topic) -> Document:
        """Read what a page shows."""

    def ask(self, question: str, site: int, fields: Mapping[str, Any]) -> Document:
        """Answer what changes nothing."""

    def act(self, action: str, site: int, fields: Mapping[str, Any]) -> Document:
        """Do what a command does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSites:
    """Deployed sites: `sluice.console.parts` says what is read, asked and done."""

    sites: Sequence[WatchedSite]
    readers: Mapping[str, Reader]
    questions: Mapping[str, Asked]
    actions: Mapping[str, Asked]

    @property
    def labels(self) -> Sequence[SiteLabel]:
        """The sites, in their order."""
        return [SiteLabel(name=str(site.name), local=site.is_local) for site in self.sites]

    def read(self, topic: Topic) -> Document:
        """Read what a page shows. Where a site can't be asked at all the next reading connects anew."""
        site, reader = self._site(topic.site), _named(self.readers, topic.reading, "reading")
        try:
            return reader(site.now(), topic.query)
        except NotDeployed:
            raise
        except (CloudFailed, NoConnection, NotUsable):
            site.forget()
            raise

    def ask(self, question: str, site: int, fields: Mapping[str, Any]) -> Document:
        """Answer what changes nothing."""
        return _named(self.questions, question, "question")(self._site(site).now(), fields)

    def act(self, action: str, site: int, fields: Mapping[str, Any]) -> Document:
        """Do what a command does."""
        return _named(self.actions, action, "action")(self._site(site).now(), fields)

    def _site(self, number: int) -> WatchedSite:
        if not 0 <= number < len(self.sites):
            raise BadRequest(f"there is no site {number}")
        return self.sites[number]


def _named(known: Mapping[str, T], name: str, kind: str) -> T:
    if name not in known:
        raise BadRequest(f"there is no {kind} {name!r}")
    return known[name]
