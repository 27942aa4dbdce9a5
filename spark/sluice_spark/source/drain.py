"""Replaces trigger `availableNow` in Spark 4.0 and 4.1, which run only one micro-batch for a Python source."""

import ast
import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice_spark.errors import InvalidOption
from sluice_spark.log.staging import StagedLog
from sluice_spark.options import Options, build_client_factory, parse_options
from sluice_spark.sqs.client import IN_FLIGHT, VISIBLE

CHECK_EVERY_S = 0.5
EMPTY_CHECKS = 4  # number of empty counts needed, because SQS's counts are approximate and delayed
STAGED_WITHIN_S = 5.0  # seconds to wait until received messages are staged
DELETED_WITHIN_S = 60.0  # seconds to wait for deletions, and for messages that other consumers have received


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The result of a drain. `empty` is False if the time ran out before the queues were empty."""

    messages: int
    empty: bool


def drain(writer: Any, options: Mapping[str, Any], *, within_s: float | None = None) -> DrainResult:
    """Run the stream until the queues were empty and their messages are committed, then stop the stream.

    `writer` is a DataStreamWriter with sink and checkpoint, not yet started. `options` are the options of its source.
    The drain also ends if producers still send, as soon as there are no visible messages. Raises the query's errors.
    """
    source = parse_options({name: str(value) for name, value in options.items()})
    if not source.queue_urls:
        raise InvalidOption("queueUrl", "missing: nothing to drain")
    deadline = None if within_s is None else time.monotonic() + within_s
    query = writer.start()
    try:
        empty = _wait_until_empty(source, query, deadline)
        if empty:
            _wait_until_staged(source, query, deadline)
        total = _wait_until_committed(source, query)
    finally:
        query.stop()
    return DrainResult(total, empty)


def _wait_until_empty(source: Options, query: Any, deadline: float | None) -> bool:
    """Wait until EMPTY_CHECKS checks, not necessarily consecutive, found no message. Returns False at the deadline."""
    empty_checks = 0
    while empty_checks < EMPTY_CHECKS:
        if deadline is not None and time.monotonic() >= deadline:
            return False
        _poll_query(query)
        empty_checks += not count_messages(source, VISIBLE)
    return True


def _wait_until_staged(source: Options, query: Any, deadline: float | None) -> None:
    """Wait until received messages are staged, and, with `deleteMode=staged`, until no message is in flight."""
    began = time.monotonic()
    until = min(began + DELETED_WITHIN_S, deadline or began + DELETED_WITHIN_S)
    while (now := time.monotonic()) < began + STAGED_WITHIN_S or (
        source.delete and not source.after_commit and now < until and count_messages(source, IN_FLIGHT)
    ):
        _poll_query(query)


def _poll_query(query: Any) -> None:
    """Wait CHECK_EVERY_S. Raises the query's error, or RuntimeError if the query was stopped."""
    if query.awaitTermination(CHECK_EVERY_S):
        raise RuntimeError("the query was stopped while it was being drained")


def count_messages(source: Options, name: str) -> int:
    """Return the approximate number of messages in all queues. `attribute` is VISIBLE or IN_FLIGHT."""

    async def count() -> int:
        async with build_client_factory(source, 1)() as client:
            return await client.count(source.queue_urls, name)

    return asyncio.run(count())


def _wait_until_committed(source: Options, query: Any) -> int:
    """Wait until all staged messages are committed, and return their number."""
    view = StagedLog(source.open_store()).read_log()
    total = view.offset(view.end).totals.messages
    committed = 0
    while committed < total:
        progress = query.lastProgress
        if end := progress and progress["sources"][0]["endOffset"]:
            committed = int(ast.literal_eval(end)["numRecordsIn"])  # PySpark passes an offset as a dict's repr
        if committed < total:
            _poll_query(query)
    return total
