"""`availableNow` for Spark 4.0 and 4.1, where that trigger runs one micro-batch for a source written in Python."""

import ast
import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice_spark.errors import InvalidOption
from sluice_spark.log.staging import StagedLog
from sluice_spark.options import Options, clients_of, parsed
from sluice_spark.sqs.client import IN_FLIGHT, VISIBLE

LOOK_EVERY_S = 0.5
LOOKS = 4  # empty ones: the counts are approximate, and lag
STAGED_WITHIN_S = 5.0  # what left the queue is staged by then, but on a busy machine
DELETED_WITHIN_S = 60.0  # and deleted, which is after that; what others hold longer isn't waited for


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain did. `empty` is False where time ran out first: the rest is still in the queue."""

    messages: int
    empty: bool


def drain(writer: Any, options: Mapping[str, Any], *, within_s: float | None = None) -> Drained:
    """Run the stream until the queues have been seen empty and what they held is committed; then stop it.

    `writer`: a DataStreamWriter with its sink and checkpoint, not yet started. `options`: those that its source was
    given. Works while producers still send: it ends at the first moment at which nothing is visible, and what is sent
    after that is for the next run. Raises what the query raises.
    """
    source = parsed({name: str(value) for name, value in options.items()})
    if not source.queue_urls:
        raise InvalidOption("queueUrl", "missing: nothing to drain")
    deadline = None if within_s is None else time.monotonic() + within_s
    query = writer.start()
    try:
        empty = _seen_empty(source, query, deadline)
        if empty:
            _until_staged(source, query, deadline)
        total = _read(source, query)
    finally:
        query.stop()
    return Drained(total, empty)


def _seen_empty(source: Options, query: Any, deadline: float | None) -> bool:
    """Whether nothing was visible, LOOKS times, before the deadline. Not in a row: a producer may be sending."""
    looks = 0
    while looks < LOOKS:
        if deadline is not None and time.monotonic() >= deadline:
            return False
        _wait(query)
        looks += not held(source, VISIBLE)
    return True


def _until_staged(source: Options, query: Any, deadline: float | None) -> None:
    """Until what was received is staged: it is in flight before, and where it is deleted then no longer after."""
    began = time.monotonic()
    until = min(began + DELETED_WITHIN_S, deadline or began + DELETED_WITHIN_S)
    while (now := time.monotonic()) < began + STAGED_WITHIN_S or (
        source.delete and not source.after_commit and now < until and held(source, IN_FLIGHT)
    ):
        _wait(query)


def _wait(query: Any) -> None:
    """LOOK_EVERY_S, or raises what ended the query."""
    if query.awaitTermination(LOOK_EVERY_S):
        raise RuntimeError("the query was stopped while it was being drained")


def held(source: Options, name: str) -> int:
    """Messages that the queues say can be received now, or are in flight."""

    async def asked() -> int:
        async with clients_of(source, 1)() as client:
            return await client.count(source.queue_urls, name)

    return asyncio.run(asked())


def _read(source: Options, query: Any) -> int:
    """How many messages were staged, once they are all committed."""
    view = StagedLog(source.store()).view()
    total = view.offset(view.end).totals.messages
    # How many messages lie before the last finished batch's end
    while (int(end["numRecordsIn"]) if (end := _end(query)) else 0) < total:
        _wait(query)
    return total


def _end(query: Any) -> Mapping[str, Any] | None:
    """Find the last finished batch's end, if any. PySpark gives an offset as text of a Python dict."""
    progress = query.lastProgress
    end = progress and progress["sources"][0]["endOffset"]
    found: Mapping[str, Any] | None = ast.literal_eval(end) if end else None
    return found
