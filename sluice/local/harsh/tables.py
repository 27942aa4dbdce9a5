"""Imitates DynamoDB's eventually consistent reads."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import ministack.core.responses
import ministack.services.dynamodb

from sluice.local.harsh.behaviours import Behaviours

READS = ("_get_item", "_query", "_scan")
MAX_REMEMBERED = 1_000  # maximum number of remembered changes; the oldest are forgotten


def read_eventually(behaviours: Behaviours, random: Random) -> None:
    """Hide a table's last changes from random reads without `ConsistentRead`.

    "Eventually consistent reads … may not reflect the results of a recently completed write operation." ministack shows
    every change at once. `BatchGetItem` and transactions are unaffected.
    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/HowItWorks.ReadConsistency.html
    """
    dynamodb, responses = ministack.services.dynamodb, ministack.core.responses
    emit = dynamodb._emit_stream_event  # noqa: SLF001 - what ministack calls after each change
    changes: deque[tuple[float, tuple[str, str, str], Any, Any]] = deque(maxlen=MAX_REMEMBERED)

    def identify_table(name: str) -> tuple[str, str, str]:
        return responses.get_account_id(), responses.get_region(), name

    def emit_and_remember(name: str, event: str, old: Any, new: Any, *rest: Any, **named: Any) -> None:
        changes.append((time.monotonic(), identify_table(name), old, new))
        emit(name, event, old, new, *rest, **named)

    @contextmanager
    def undo_last_changes(name: str, table: Any) -> Iterator[None]:
        since = time.monotonic() - behaviours.scale_delay(behaviours.stale_s)
        last = [(old, new) for at, changed, old, new in changes if changed == identify_table(name) and at > since]
        for old, new in reversed(last):
            _replace_item(table, new, old)
        try:
            yield
        finally:
            for old, new in last:
                _replace_item(table, old, new)

    def read_perhaps_stale(read: Callable[[Any], Any], data: Any) -> Any:
        name = dynamodb._normalize_table_name(data.get("TableName"))  # noqa: SLF001 - no public hook
        table = dynamodb._tables.get(name)  # noqa: SLF001 - see above
        if table is None or data.get("ConsistentRead") or random.random() >= behaviours.stale_reads:
            return read(data)
        with undo_last_changes(name, table):
            return read(data)

    dynamodb._emit_stream_event = emit_and_remember  # noqa: SLF001 - see above
    for read in READS:
        setattr(dynamodb, read, partial(read_perhaps_stale, getattr(dynamodb, read)))


def _replace_item(table: Any, old_item: Any, new_item: Any) -> None:
    """Replace an item of a table by another item with the same key. `None` stands for a missing item."""
    dynamodb = ministack.services.dynamodb
    keys = dynamodb._resolve_table_key_values(table, old_item or new_item, allow_extra=True)[:2]  # noqa: SLF001 - no public hook
    if new_item is None:
        dynamodb._remove_item(table, *keys)  # noqa: SLF001 - see above
    else:
        dynamodb._set_item(table, *keys, new_item)  # noqa: SLF001 - see above
