"""What is watched: readings of sites by topic, questions about them, and what may be done to them, all by name.

A page's reading and its module in `static/pages` have one name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sluice.aws.connections import NoConnection
from sluice.aws.deployment import NotDeployed, NotUsable
from sluice.console import maps, trials
from sluice.console.readings import dead_letters, federation, log, overview, pipeline, rendezvous, splitting
from sluice.console.requests import Topic
from sluice.console.sites import Document, Reader, WatchedSite
from sluice.errors import BadRequest
from sluice.federation.operations import TellBridge, TellLink
from sluice.local.cloud import CloudFailed

T = TypeVar("T")
Asked = Callable[[Any, Mapping[str, Any]], Document]  # a site, and the fields of a form

READERS: Mapping[str, Reader] = {
    "overview": overview.read,
    "rendezvous": rendezvous.read,
    "splitting": splitting.read,
    "federation": federation.read,
    "route-rates": federation.read_rates,
    "pipeline": pipeline.read,
    "dead-letters": dead_letters.read,
    "log": log.read,
}
# Change nothing: also for who may only look.
QUESTIONS: Mapping[str, Asked] = {
    "try-message": trials.try_message,
    "trace-key": maps.trace,
    "quarantine": pipeline.quarantine,
    "dead-letters": dead_letters.look,
    "dead-letter": dead_letters.show,
    "trace": log.trace,
}
# With --allow-actions alone. A peek is a receive: after as many as the queue allows SQS takes the message for dead.
ACTIONS: Mapping[str, Asked] = {
    "peek": trials.peek,
    "stop-session": splitting.stop_session,
    "tell-route": partial(federation.tell, TellBridge),
    "tell-link": partial(federation.tell, TellLink),
    "redrive-route": federation.redrive_route,
    "start-job": pipeline.start_job,
    "stop-job": pipeline.stop_job,
    "drain-queue": pipeline.drain,
    "redrive": dead_letters.redrive,
    "purge": dead_letters.purge,
    "stop-move": dead_letters.stop,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSites:
    """Deployed sites. All of it may block, and raises a `SluiceError` in the command's own words."""

    sites: Sequence[WatchedSite]
    readers: Mapping[str, Reader]
    questions: Mapping[str, Asked]
    actions: Mapping[str, Asked]

    @property
    def labels(self) -> Sequence[Document]:
        """What a page says of the sites, in their order."""
        return [{"name": str(site.name), "local": site.is_local} for site in self.sites]

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
