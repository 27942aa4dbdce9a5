"""Maps names to functions: readings of sites, questions about sites, and actions on sites.

A page's reading and its module in `static/pages` have the same name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sluice.aws.connections import NoConnection
from sluice.aws.deployment import NotDeployed, NotUsable
from sluice.console.readings import dead_letters, federation, log, overview, pipeline, rendezvous, splitting
from sluice.console.requests import Topic
from sluice.console.sites import Document, Reader, WatchedSite
from sluice.errors import BadRequest
from sluice.federation.operations import CommandBridge, CommandLink
from sluice.local.cloud import CloudFailed

T = TypeVar("T")
FormHandler = Callable[[Any, Mapping[str, Any]], Document]  # The arguments are a site and a form's fields.

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
# Questions have no side effects and are allowed in a read-only console.
QUESTIONS: Mapping[str, FormHandler] = {
    "dead-letters": dead_letters.list_letters,
    "dead-letter": dead_letters.show_letter,
}
# Actions change a site, and are allowed only if the console was started with --allow-actions.
ACTIONS: Mapping[str, FormHandler] = {
    "stop-session": splitting.stop_session,
    "tell-route": partial(federation.send_command, CommandBridge),
    "tell-link": partial(federation.send_command, CommandLink),
    "redrive-route": federation.redrive_route,
    "start-job": pipeline.start_job,
    "stop-job": pipeline.stop_job,
    "drain-queue": pipeline.drain,
    "redrive": dead_letters.redrive,
    "purge": dead_letters.purge,
    "stop-move": dead_letters.stop_move,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSites:
    """The sites that a console watches. Methods block during AWS calls, and raise the same errors as commands."""

    sites: Sequence[WatchedSite]
    readers: Mapping[str, Reader]
    questions: Mapping[str, FormHandler]
    actions: Mapping[str, FormHandler]

    @property
    def site_labels(self) -> Sequence[Document]:
        """The sites' names for the pages, in the order of their indexes."""
        return [{"name": str(site.name), "local": site.is_local} for site in self.sites]

    def read(self, topic: Topic) -> Document:
        """Read the data of a topic. If the site can't be reached, the next reading connects again."""
        site, reader = self._get_site(topic.site_index), _find_by_name(self.readers, topic.reading, "reading")
        try:
            return reader(site.open_round(), topic.query)
        except NotDeployed:
            raise
        except (CloudFailed, NoConnection, NotUsable):
            site.disconnect()
            raise

    def ask(self, question: str, site: int, fields: Mapping[str, Any]) -> Document:
        """Answer a question about a site. Questions have no side effects."""
        return _find_by_name(self.questions, question, "question")(self._get_site(site).open_round(), fields)

    def act(self, action: str, site: int, fields: Mapping[str, Any]) -> Document:
        """Run an action, which may change the site."""
        return _find_by_name(self.actions, action, "action")(self._get_site(site).open_round(), fields)

    def _get_site(self, number: int) -> WatchedSite:
        if not 0 <= number < len(self.sites):
            raise BadRequest(f"there is no site {number}")
        return self.sites[number]


def _find_by_name(functions: Mapping[str, T], name: str, kind: str) -> T:
    if name not in functions:
        raise BadRequest(f"there is no {kind} {name!r}")
    return functions[name]
