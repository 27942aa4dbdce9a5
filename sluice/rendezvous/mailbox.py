"""The queue on which one execution environment of the proxy function hears of what it waits for.

An environment serves one request at a time, so its mailbox has one reader. Letters for a request that is over are
skipped. Letters aren't deleted: they stay invisible longer than they are kept, which saves a request for each.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.errors import QueueGone
from sluice.rendezvous.broker import RendezvousDependencies

if TYPE_CHECKING:  # the adapter's type; a shell is given it, and imports none
    from sluice.aws.rendezvous.waiting import DynamoMailboxStore

PREFIX = "sluice-mailbox-"
ATTRIBUTES = {"MessageRetentionPeriod": "60", "VisibilityTimeout": "120"}
# An environment changes its mailbox after an hour, so by its creation time alone the sweeper knows that nobody reads
# it any more, and no heartbeat has to be written.
USED_FOR_MS = 60 * 60_000
SWEPT_AFTER_MS = USED_FOR_MS + 15 * 60_000

SHORTEST_WAIT_MS = 500
MADE_WITHIN_MS = 2_000
APPEARS_WITHIN_MS = 5_000  # after it was made; AWS asks to wait for a second
LOOKED_AGAIN_AFTER_MS = 250


@dataclass(slots=True)
class Mailbox:
    """The environment's mailbox, made when it is first needed."""

    site: RendezvousDependencies
    mailboxes: "DynamoMailboxStore"
    prefix: str = PREFIX
    _url: str = ""
    _created_at_ms: int = 0

    def url(self) -> str:
        """Give the mailbox's URL: a new one's where there is none yet, or the old one's hour is over.

        Raises `CallFailed`.
        """
        site, now_ms = self.site, self.site.now_ms()
        if not self._url or now_ms - self._created_at_ms >= USED_FOR_MS:
            name = self.prefix + site.new_id()
            self.mailboxes.note(name, created_at_ms=now_ms)
            self._url = site.retry_until(now_ms + MADE_WITHIN_MS, lambda: site.queues.create(name, ATTRIBUTES))
            self._created_at_ms = now_ms
        return self._url

    def wait_for(self, addressee: str, *, until_ms: int) -> dict[str, Any] | None:
        """Wait for the letter for `addressee`; None where none came until then, to half a second.

        Looks at least once. Raises `QueueGone`, and the next `url` is a new mailbox's; or `CallFailed`.
        """
        if not self._url:
            raise QueueGone(self.prefix)
        while True:
            # SQS waits whole seconds.
            wait_s = max(round((until_ms - self.site.now_ms()) / 1000), 0)
            try:
                body = self.site.queues.receive(self._url, wait_s=wait_s)
            except QueueGone:
                if self.site.now_ms() - self._created_at_ms >= APPEARS_WITHIN_MS:
                    self._url = ""
                    raise
                self.site.sleep(LOOKED_AGAIN_AFTER_MS / 1000)
                body = None
            letter: dict[str, Any] = json.loads(body) if body else {}
            if letter.get("for") == addressee:
                return letter
            if body is None and until_ms - self.site.now_ms() < SHORTEST_WAIT_MS:
                return None
