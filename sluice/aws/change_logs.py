"""Stores a value in DynamoDB as a snapshot and the log of changes after it.

pk                sk               item
document#<name>   head             version, and the snapshot's name
document#<name>   change#<version> the change
document#<name>   <token>#<n>      the n-th part of a snapshot

A change is written in one transaction with the head of its version, on the condition that the head's token hasn't
changed. So versions have no gaps, and each is written once. A snapshot is written separately; then the head names it,
on the condition that the head still names the previous one. Meanwhile changes may be written. Changes are kept until
the snapshot after the next, so that a reader has that time to follow.

Unused items are deleted by the writer of the next snapshot, as the head lists them: a snapshot before its parts are
written (`pending`), replaced snapshots (`stale`), and the version up to which changes are deleted (`swept`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.clients import calls
from sluice.aws.documents import HEAD, MAX_READS, PART_BYTES
from sluice.aws.items import (
    TRANSACTION_CANCELED,
    Item,
    attributes,
    delete_all,
    get_cancellation_codes,
    get_item,
    number,
    query_pages,
    text,
    update_if,
)
from sluice.errors import CallFailed
from sluice.federation.matching.bindings import BindingsUpdate

MAX_CHANGES = 1_000  # After this many changes since the last snapshot, a new snapshot is due.
MAX_LOG_BYTES = 1024 * 1024
CONDITION_IN_TRANSACTION = "ConditionalCheckFailed"
CONFLICT = "TransactionConflict"


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes of a head; missing ones are empty or zero. Snapshots are named `<token>*<number of parts>`."""

    version: int = 0
    token: str = ""
    snapshot: str = ""
    snapshot_version: int = 0
    pending: str = ""
    stale: str = ""
    kept: int = 0  # Changes after this version can still be read.
    swept: int = 0  # Changes up to this version are deleted.
    bytes: int = 0  # total size in bytes of the changes after the snapshot

    @classmethod
    def from_item(cls, item: Item) -> "_Head":
        texts = {name: text(item, name) for name in ("token", "snapshot", "pending", "stale")}
        numbers = {name: number(item, name) for name in ("version", "snapshot_version", "kept", "swept", "bytes")}
        return cls(**texts, **numbers)  # type: ignore[arg-type]  # by their names


@dataclass(slots=True, kw_only=True)
class DynamoChangeLog:
    """Stores one value as a snapshot and a log of changes. Not thread-safe. All methods raise `CallFailed`.

    `new_token` returns a unique text of at most 36 characters.
    """

    client: DynamoDBClient
    table: str
    name: str
    new_token: Callable[[], str]
    _head: _Head = field(default_factory=_Head)

    @property
    def is_long(self) -> bool:
        """Whether the log of changes was so long at the last read or write that a snapshot should replace it."""
        head = self._head
        return head.version - head.snapshot_version >= MAX_CHANGES or head.bytes >= MAX_LOG_BYTES

    def read_since(self, version: int | None) -> BindingsUpdate:
        """Read the changes after a version, in one small read. If there are changes, a second read follows.

        If another writer replaces the value meanwhile, everything is read again, up to ten times.
        """
        for _ in range(MAX_READS):
            head = self._head = _Head.from_item(self._read_item(HEAD))
            if version == head.version:
                return BindingsUpdate(version=version)
            if version is not None and head.kept <= version < head.version:
                changes = self._read_changes(version, head.version)
                if changes is not None:
                    return BindingsUpdate(version=head.version, changes=changes)
                continue
            parts = [self._read_item(key) for key in _list_snapshot_keys(head.snapshot)]
            changes = self._read_changes(head.snapshot_version, head.version)
            if all(parts) and changes is not None:
                snapshot = b"".join(part["data"]["B"] for part in parts) if parts else None
                return BindingsUpdate(
                    version=head.version, changes=changes, base=head.snapshot_version, snapshot=snapshot
                )
        raise CallFailed("GetItem", "Changing", f"{self.name} was replaced during each of {MAX_READS} reads")

    def append(self, change: bytes, *, after: int) -> bool:
        """Write a change as version `after` + 1. Returns False if another writer has written that version."""
        head = self._read_head_at(after)
        if head is None:
            return False
        token = self.new_token()
        later = replace(head, version=after + 1, token=token, bytes=head.bytes + len(change))
        key = _build_change_key(later.version)
        item: Any = {**self._build_key(key), **attributes({"token": token}), "data": {"B": change}}
        try:
            with calls("TransactWriteItems"):
                self.client.transact_write_items(
                    TransactItems=[
                        {"Update": self._build_update(head, later, ("version", "token", "bytes"), ("token",))},
                        {"Put": {"TableName": self.table, "Item": item}},
                    ],
                    ClientRequestToken=token,
                )
        except CallFailed as error:
            # An earlier attempt may have written the change already, if its response was lost.
            codes = get_cancellation_codes(error) if error.code == TRANSACTION_CANCELED else ()
            if CONDITION_IN_TRANSACTION not in codes and CONFLICT not in codes:
                raise
            if text(self._read_item(key), "token") != token:
                return False
        self._head = later
        return True

    def save(self, snapshot: bytes, *, after: int, version: int) -> bool:
        """Write a snapshot of version `after` or the next version. Returns False if another writer was faster."""
        head = self._read_head_at(after)
        if head is None:
            return False
        token, starts = self.new_token(), range(0, max(len(snapshot), 1), PART_BYTES)
        named = f"{token}*{len(starts)}"
        stale = " ".join(filter(None, (head.stale, head.pending)))
        announced = replace(head, token=head.token or self.new_token(), pending=named, stale=stale)
        # From here on, the writer of the previous pending snapshot can't finish it, so its parts may be deleted.
        if not self._save_head(head, announced, ("pending", "stale"), ("snapshot", "pending"), own_attribute="pending"):
            return False
        unused_keys = [_build_change_key(version_gone) for version_gone in range(head.swept + 1, head.kept + 1)]
        unused_keys += [key for part_token in stale.split() for key in _list_snapshot_keys(part_token)]
        delete_all(self.client, self.table, [self._build_key(key) for key in unused_keys])
        for key, start in zip(_list_snapshot_keys(named), starts, strict=True):
            part: Any = {**self._build_key(key), "data": {"B": snapshot[start : start + PART_BYTES]}}
            with calls("PutItem"):
                self.client.put_item(TableName=self.table, Item=part)
        is_new = version > after
        later = replace(
            announced,
            version=version,
            token=token if is_new else announced.token,
            snapshot=named,
            snapshot_version=version,
            pending="",
            stale=head.snapshot,
            kept=version if is_new else head.snapshot_version,
            swept=head.kept,
            bytes=0,
        )
        changed, conditions = [*_SNAPSHOT_ATTRIBUTES], ["snapshot", "pending"]
        if is_new:
            changed, conditions = [*changed, "version", "token"], [*conditions, "token"]
        is_ours = self._save_head(announced, later, changed, conditions, own_attribute="snapshot")
        unread = _list_snapshot_keys(head.snapshot if is_ours else named)
        delete_all(self.client, self.table, [self._build_key(key) for key in unread])
        return is_ours

    def _save_head(
        self, before: _Head, after: _Head, changed: Sequence[str], same: Sequence[str], *, own_attribute: str
    ) -> bool:
        """Change the head if the attributes in `same` have their old values. Returns False if they don't.

        A write whose response was lost is retried, perhaps a minute later. The attribute `own_attribute` then shows
        whether the first write succeeded, since no other writer gives it this value.
        """
        if update_if(self.client, **self._build_update(before, after, changed, same)) is None:
            existing = _Head.from_item(self._read_item(HEAD))
            if getattr(existing, own_attribute) != getattr(after, own_attribute):
                return False
        self._head = after
        return True

    def _build_update(self, before: _Head, after: _Head, changed: Sequence[str], same: Sequence[str]) -> Any:
        """Build the arguments of UpdateItem for a change of the head. A new head gets all attributes."""
        if before == _Head():
            changed, same = _HEAD_ATTRIBUTES, ()
        values = {f":{name}": getattr(after, name) for name in changed}
        values |= {f":was_{name}": getattr(before, name) for name in same}
        condition = " AND ".join(f"#{name} = :was_{name}" for name in same)
        return {
            "TableName": self.table,
            "Key": self._build_key(HEAD),
            "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in changed),
            "ConditionExpression": condition or "attribute_not_exists(pk)",
            # Some attribute names are reserved words of DynamoDB.
            "ExpressionAttributeNames": {f"#{name}": name for name in {*changed, *same}},
            "ExpressionAttributeValues": attributes(values),
        }

    def _read_head_at(self, version: int) -> _Head | None:
        """Return the head if it has this version; None if another writer has changed it since."""
        if self._head.version != version or not self._head.token:
            self._head = _Head.from_item(self._read_item(HEAD))
        return self._head if self._head.version == version else None

    def _read_changes(self, after: int, last: int) -> Sequence[bytes] | None:
        """Read the changes after version `after` up to version `last`; None if any of them is deleted."""
        if after == last:
            return ()
        between = {":first": _build_change_key(after + 1), ":last": _build_change_key(last)}
        pages = query_pages(
            self.client, self.table, self._pk, "sk BETWEEN :first AND :last", between, ConsistentRead=True
        )
        changes = [item["data"]["B"] for page in pages for item in page]
        return changes if len(changes) == last - after else None

    def _read_item(self, sort_key: str) -> Item:
        return get_item(self.client, self.table, self._build_key(sort_key))

    def _build_key(self, sort_key: str) -> dict[str, dict[str, str]]:
        return attributes({"pk": self._pk, "sk": sort_key})

    @property
    def _pk(self) -> str:
        return f"document#{self.name}"


_SNAPSHOT_ATTRIBUTES = ("snapshot", "snapshot_version", "pending", "stale", "kept", "swept", "bytes")
_HEAD_ATTRIBUTES = ("version", "token", *_SNAPSHOT_ATTRIBUTES)


def _build_change_key(version: int) -> str:
    return f"change#{version:012}"


def _list_snapshot_keys(snapshot: str) -> list[str]:
    """Return the sort keys of a snapshot's parts; none if the snapshot's name is empty."""
    token, _, parts = snapshot.rpartition("*")
    return [f"{token}#{place}" for place in range(int(parts or 0))]
