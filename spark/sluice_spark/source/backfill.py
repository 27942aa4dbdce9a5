"""Backfill: lists a bucket's objects once, and stages them as if S3 had sent a notification for each.

It runs in the receiver's loop before the first receive, so the log has one writer, and new notifications wait in
the queue and are compared to the list. The progress is stored in the log: see `log.latest`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice
from typing import Any

import pyarrow as pa

from sluice_spark.errors import InvalidOption
from sluice_spark.formats.envelopes import notification_body
from sluice_spark.formats.s3_objects import PAGE_OBJECTS, Page, list_pages
from sluice_spark.log.latest import Progress, read_progress, write_progress
from sluice_spark.log.notifications import NotificationDeduplicator
from sluice_spark.log.segments import build_table
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import Store
from sluice_spark.options import Options

log = logging.getLogger(__name__)

PAGES_AT_ONCE = 10  # in one segment
MARGIN_S = 60.0  # S3's clocks, and what it has done by the time that it answers
ROOM_EVERY_S = 0.05
ID_BYTES = 16

Facts = Mapping[str, str]


class BackfillRunner:
    """Runs one query's backfill from where it stopped; does nothing if it is complete."""

    def __init__(
        self,
        location: str,
        store: Store,
        notified: NotificationDeduplicator,
        envelopes: Sequence[str],
        client: Callable[[], Any],
        *,
        page_objects: int = PAGE_OBJECTS,
    ) -> None:
        self._location, self._store, self._notified = location, store, notified
        self._envelopes, self._client, self._page_objects = envelopes, client, page_objects

    async def run(self, staged: StagedLog, *, room: Callable[[], bool], ending: Callable[[], bool]) -> None:
        """Stage what is in the bucket, while there is room, until told to end.

        Raises InvalidOption for a log that was begun otherwise, ObjectRefused, and what appending raises.
        """
        made = await asyncio.to_thread(read_progress, self._store)
        self._check(made, staged)
        if made and made.until is not None:
            return
        bucket, _, prefix = self._location.removeprefix("s3://").partition("/")
        listing = list_pages(self._client(), bucket, prefix, after=made.after if made else "", size=self._page_objects)
        made = replace(made, step=made.step + 1) if made else None
        while not ending():
            if not room():
                await asyncio.sleep(ROOM_EVERY_S)
                continue
            some = await asyncio.to_thread(lambda: list(islice(listing, PAGES_AT_ONCE)))
            made = await asyncio.to_thread(self._stage_pages, staged, some, made)
            if made.until is not None:
                log.info("%s is listed: notifications are next", self._location)
                return

    def _check(self, made: Progress | None, staged: StagedLog) -> None:
        if made and made.location != self._location:
            raise InvalidOption("s3Backfill", f"this staging location began with {made.location}: one can't have two")
        if made is None and staged.log.offset(staged.log.end).totals.messages:
            raise InvalidOption("s3Backfill", "this staging location has messages: a backfill comes before the first")

    def _stage_pages(self, staged: StagedLog, some: Sequence[Page], made: Progress | None) -> Progress:
        """Stage some pages and store the progress; fewer than PAGES_AT_ONCE pages complete the backfill."""
        if made is None:
            since = (some[0].answered_at if some else datetime.now(UTC)).timestamp() - MARGIN_S
            made = write_progress(self._store, Progress(location=self._location, since=since))
        self._notified.backfill = made.backfill
        objects = [facts for page in some for facts in page.objects]
        fresh = {_id(facts): facts for facts in objects}
        fresh = {identity: facts for identity, facts in fresh.items() if identity not in staged.deduplicator}
        if fresh:
            header = staged.append(_rows(fresh, self._location, self._envelopes, some[-1].answered_at))
            staged.deduplicator.add_new(list(fresh))
            staged.deduplicator.add_segment(header.number, list(fresh))
            staged.deduplicator.confirm_deletion(header.number)
        self._notified.remember_listed(objects)
        if len(some) < PAGES_AT_ONCE:
            at = some[-1].answered_at.timestamp() if some else datetime.now(UTC).timestamp()
            made = replace(made, until=at + MARGIN_S)
        last = next((page.objects[-1]["key"] for page in reversed(some) if page.objects), made.after)
        made = write_progress(self._store, replace(made, after=last))
        self._notified.backfill = made.backfill
        return made


def build_backfill_runner(options: Options, staged: StagedLog) -> BackfillRunner | None:
    """Build the backfill that the options ask for, if any."""
    if not options.files.backfill or staged.notified is None:
        return None
    return BackfillRunner(
        options.files.backfill,
        options.store(),
        staged.notified,
        options.bodies.envelopes,
        options.objects,
    )


def _id(facts: Facts) -> str:
    """Name an object's content as a message: the same when it is listed again."""
    named = "\n".join([facts["bucket"], facts["key"], facts["eTag"]])
    return f"backfill-{blake2b(named.encode(), digest_size=ID_BYTES).hexdigest()}"


def _rows(found: Mapping[str, Facts], location: str, envelopes: Sequence[str], at: datetime) -> pa.Table:
    """Make rows of a segment: a message for each object, sent and received when it was listed."""
    count = len(found)
    return build_table(
        {
            "message_id": list(found),
            "body": [notification_body(facts, envelopes) for facts in found.values()],
            "attributes": [[]] * count,
            "sent_at": [at] * count,
            "first_received_at": [at] * count,
            "receive_count": [1] * count,
            "queue_url": [location] * count,
        }
    )
