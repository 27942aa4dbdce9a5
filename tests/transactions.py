"""moto's transactions at a fair price: it copies the whole table for each write of one, and one copy will do."""

import copy
from contextvars import ContextVar
from functools import wraps
from typing import Any

from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.table import Table

_taken: ContextVar[dict[int, Any] | None] = ContextVar("taken", default=None)


def copy_tables_once() -> None:
    """Has a transaction copy each table once. All copies are made before its first write, so they are equal."""
    real = DynamoDBBackend.transact_write_items
    if hasattr(real, "__wrapped__"):
        return

    @wraps(real)
    def transact_write_items(self: DynamoDBBackend, transact_items: list[dict[str, Any]]) -> None:
        token = _taken.set({})
        try:
            real(self, transact_items)
        finally:
            _taken.reset(token)

    DynamoDBBackend.transact_write_items = transact_write_items  # type: ignore[method-assign]
    Table.__deepcopy__ = _copy_of  # type: ignore[attr-defined]


def _copy_of(table: Table, memo: dict[int, Any]) -> Any:
    taken = _taken.get()
    if taken is not None and id(table) in taken:
        return taken[id(table)]
    made: Any = object.__new__(type(table))
    made.__dict__.update(copy.deepcopy(table.__dict__, memo))
    if taken is not None:
        taken[id(table)] = made
    return made
