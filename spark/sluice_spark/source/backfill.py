"""What is in a bucket before its first notification: listed once, and staged as if it had been notified.

In the receiver's loop, before it receives anything: so one writes the log, and whatever is notified meanwhile waits in
the queue, to be held against the list. Where the list ends, and from when on, is kept in the log: see `log.latest`.
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
from sluice_spark.formats.envelopes import listed
from sluice_spark.formats.s3_objects import PAGE_OBJECTS, Page, pages
from sluice_spark.log.latest import Progress, read_progress, write_progress
from sluice_spark.log.notified import Notified
from sluice_spark.log.segments import table_with
from sluice_spark.log.staging import StagedLog
from sluice_spark.log.store import Store
from sluice_spark.options import Options

log = logging.getLogger(__name__)

PAGES_AT_ONCE = 10  # in one segment
MARGIN_S = 60.0  # S3's clocks, and what it has done by the time that it answers
ROOM_EVERY_S = 0.05
ID_BYTES = 16

Facts = Mapping[str, str]


class Backfilling:
    """One query's. Does what is left to do, or nothing."""

    def __init__(
        self,
        location: str,
        store: Store,
        notified: Notified,
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
        found = pages(self._client(), bucket, prefix, after=made.after if made else "", size=self._page_objects)
        made = replace(made, step=made.step + 1) if made else None
        while not ending():
            if not room():
                await asyncio.sleep(ROOM_EVERY_S)
                continue
            some = await asyncio.to_thread(lambda: list(islice(found, PAGES_AT_ONCE)))
            made = await asyncio.to_thread(self._staged, staged, some, made)
            if made.until is not None:
                log.info("%s is listed: notifications are next", self._location)
                return

    def _check(self, made: Progress | None, staged: StagedLog) -> None:
        if made and made.location != self._location:
            raise InvalidOption("s3Backfill", f"this staging location began with {made.location}: one can't have two")
        if made is None and staged.log.offset(staged.log.end).totals.messages:
            raise InvalidOption("s3Backfill", "this staging location has messages: a backfill comes before the first")

    def _staged(self, staged: StagedLog, some: Sequence[Page], made: Progress | None) -> Progress:
        """Stage pages, none at the end, and note it."""
        if made is None:
            since = (some[0].answered_at if some else datetime.now(UTC)).timestamp() - MARGIN_S
            made = write_progress(self._store, Progress(location=self._location, since=since))
        self._notified.backfill = made.backfill
        objects = [facts for page in some for facts in page.objects]
        fresh = {_id(facts): facts for facts in objects}
        fresh = {identity: facts for identity, facts in fresh.items() if identity not in staged.seen}
        if fresh:
            header = staged.append(_rows(fresh, self._location, self._envelopes, some[-1].answered_at))
            staged.seen.taken(list(fresh))
            staged.seen.staged(header.number, list(fresh))
            staged.seen.confirmed(header.number)
        self._notified.listed(objects)
        if len(some) < PAGES_AT_ONCE:
            at = some[-1].answered_at.timestamp() if some else datetime.now(UTC).timestamp()
            made = replace(made, until=at + MARGIN_S)
        last = next((page.objects[-1]["key"] for page in reversed(some) if page.objects), made.after)
        made = write_progress(self._store, replace(made, after=last))
        self._notified.backfill = made.backfill
        return made


def backfilling_of(options: Options, staged: StagedLog) -> Backfilling | None:
    """Make what the options say, if they do."""
    if not options.files.backfill or staged.notified is None:
        return None
    return Backfilling(
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
    return table_with(
        {
            "message_id": list(found),
            "body": [listed(facts, envelopes) for facts in found.values()],
            "attributes": [[]] * count,
            "sent_at": [at] * count,
            "first_received_at": [at] * count,
            "receive_count": [1] * count,
            "queue_url": [location] * count,
        }
    )
