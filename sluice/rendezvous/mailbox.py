"""The mailbox: the queue in which one execution environment of the proxy function receives offers and answers.

An environment serves one request at a time, so its mailbox has one reader. Messages for an earlier request are skipped.
Messages aren't deleted, which saves requests: a received message stays invisible until its retention ends.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.errors import QueueGone
from sluice.rendezvous.broker import RendezvousDependencies

if TYPE_CHECKING:  # These imports are only for type hints: the adapters are passed in as arguments.
    from sluice.aws.rendezvous.waiting import DynamoMailboxStore

PREFIX = "sluice-mailbox-"
ATTRIBUTES = {"MessageRetentionPeriod": "60", "VisibilityTimeout": "120"}
# An environment replaces its mailbox after an hour. So the sweeper knows by a mailbox's creation time whether it can
# still be in use, and no heartbeats are needed.
USED_FOR_MS = 60 * 60_000
SWEPT_AFTER_MS = USED_FOR_MS + 15 * 60_000

SHORTEST_WAIT_MS = 500
CREATION_TIMEOUT_MS = 2_000
APPEARS_WITHIN_MS = 5_000  # SQS finds a new queue after this time; AWS documents one second.
LOOKED_AGAIN_AFTER_MS = 250


@dataclass(slots=True)
class Mailbox:
    """The mailbox of one execution environment, created on first use."""

    site: RendezvousDependencies
    mailboxes: "DynamoMailboxStore"
    prefix: str = PREFIX
    _url: str = ""
    _created_at_ms: int = 0

    def get_url(self) -> str:
        """Return the mailbox's URL. Creates a new mailbox on first use and every hour. Raises `CallFailed`."""
        site, now_ms = self.site, self.site.now_ms()
        if not self._url or now_ms - self._created_at_ms >= USED_FOR_MS:
            name = self.prefix + site.new_id()
            self.mailboxes.record(name, created_at_ms=now_ms)
            self._url = site.retry_until(now_ms + CREATION_TIMEOUT_MS, lambda: site.queues.create(name, ATTRIBUTES))
            self._created_at_ms = now_ms
        return self._url

    def receive_for(self, addressee: str, *, until_ms: int) -> dict[str, Any] | None:
        """Wait for the message for `addressee`, until this time to half a second. Returns None if no message arrived.

        The queue is read at least once. Raises `CallFailed`, or `QueueGone`; then `get_url` creates a new mailbox.
        """
        if not self._url:
            raise QueueGone(self.prefix)
        while True:
            # SQS accepts only whole seconds as a wait.
            wait_s = max(round((until_ms - self.site.now_ms()) / 1000), 0)
            try:
                body = self.site.queues.receive(self._url, wait_s=wait_s)
            except QueueGone:
                if self.site.now_ms() - self._created_at_ms >= APPEARS_WITHIN_MS:
                    self._url = ""
                    raise
                self.site.sleep(LOOKED_AGAIN_AFTER_MS / 1000)
                body = None
            message: dict[str, Any] = json.loads(body) if body else {}
            if message.get("for") == addressee:
                return message
            if body is None and until_ms - self.site.now_ms() < SHORTEST_WAIT_MS:
                return None
