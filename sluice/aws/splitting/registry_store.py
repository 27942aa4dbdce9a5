"""Stores the registry of splits and sessions in DynamoDB. Reads are strongly consistent.

pk sk item registry head the version, and the revision, which changes with every write registry queue#<name> a temporary
queue registry session#<id> a session registry split#<id> a split queue registry consumers#<id> a split queue's
re-pointed consumers, with the progress of each splitters <id> the version by which a splitter routes, and the time of
the announcement heartbeats <session id> the time of a session's last heartbeat counts <session id> the number of
messages sent to a session ended <session id> the reason for the end of a removed session ticks control the time of the
next tick

Queues, sessions, splits and consumers are stored as text, each in its `Format`; other items have attributes. Only items
of the partition `registry` change the revision.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.clients import calls
from sluice.aws.items import (
    TRANSACTION_CANCELED,
    Item,
    attributes,
    get_cancellation_codes,
    get_item,
    number,
    query_pages,
    text,
)
from sluice.aws.ticks import Ticks
from sluice.codec import Format
from sluice.errors import BadConfiguration, CallFailed
from sluice.splitting.consumers.targets import CONSUMERS
from sluice.splitting.sessions.state import SESSIONS, SPLITS, TEMPORARY_QUEUES, Registry, Session, SplitterAnnouncement

REGISTRY = "registry"
SPLITTERS = "splitters"
HEARTBEATS = "heartbeats"
COUNTS = "counts"
ENDED = "ended"
HEAD = "head"
SESSION = "session#"
# Each kind of value has a prefix of its sort keys, a format, and a field of the registry, keyed by the rest.
KINDS: tuple[tuple[str, Format[Any], str], ...] = (
    ("split#", SPLITS, "splits"),
    (SESSION, SESSIONS, "sessions"),
    ("queue#", TEMPORARY_QUEUES, "queues"),
    ("consumers#", CONSUMERS, "consumers"),
)
KEPT_S = 60 * 60  # An announcement, heartbeat or reason expires this long after it was last written.
COUNTED_FOR_S = 7 * 24 * 60 * 60
MAX_CHANGES = 99  # A DynamoDB transaction can write this many items besides the head.
MAX_READS = 10  # A registry that changes between its pages is read at most this often.
BEATEN = frozenset({"None", "ConditionalCheckFailed", "TransactionConflict"})


class TooManyChanges(BadConfiguration):
    """One event changes more items of the registry than one DynamoDB transaction can write."""


class DynamoRegistryStore(msgspec.Struct, frozen=True):
    """Stores the registry in one table. Every method raises `CallFailed`; methods that read may raise `BadSnapshot`."""

    client: DynamoDBClient
    table: str

    def read_version(self) -> int:
        """Read the current version of the registry."""
        return number(self._read_item(REGISTRY, HEAD), "version")

    def load(self) -> tuple[Registry, int]:
        """Read the whole registry and its revision; read them again if the registry changed in between."""
        for _ in range(MAX_READS):
            items = {text(item, "sk"): item for item in self._read_items(REGISTRY)}
            head = items.pop(HEAD, {})
            if number(self._read_item(REGISTRY, HEAD), "revision") == number(head, "revision"):
                return self._decode_registry(number(head, "version"), items), number(head, "revision")
        raise CallFailed("Query", "Changing", f"the registry changed during each of {MAX_READS} reads")

    def _decode_registry(self, version: int, items: Mapping[str, Item]) -> Registry:
        values: dict[str, dict[str, Any]] = {
            field: {
                key.removeprefix(prefix): stored.from_text(text(item, "value"))
                for key, item in items.items()
                if key.startswith(prefix)
            }
            for prefix, stored, field in KINDS
        }
        return self.refresh(Registry(version=version, **values))

    def read_revision(self) -> int:
        """Read the current revision, which a caller of `save` must pass."""
        return number(self._read_item(REGISTRY, HEAD), "revision")

    def refresh(self, registry: Registry) -> Registry:
        """Replace the registry's splitters and heartbeats by the currently stored ones."""
        heard = {text(item, "sk"): number(item, "at") for item in self._read_items(HEARTBEATS)}
        later = {
            session.session_id: replace(session, heartbeat_at_ms=heard[session.session_id])
            for session in registry.sessions.values()
            if heard.get(session.session_id, 0) > session.heartbeat_at_ms
        }
        splitters = {
            text(item, "sk"): SplitterAnnouncement(number(item, "version"), number(item, "at"))
            for item in self._read_items(SPLITTERS)
        }
        return replace(registry, sessions={**registry.sessions, **later}, splitters=splitters)

    def read_session(self, session_id: str) -> Session | None:
        """Read one stored session by its id. Returns None if it isn't stored."""
        item = self._read_item(REGISTRY, SESSION + session_id)
        return SESSIONS.from_text(text(item, "value")) if item else None

    def save(self, before: Registry, after: Registry, *, revision: int) -> int | None:
        """Write the differences in one transaction. Returns its revision; None if another writer changed `revision`.

        Splitters and heartbeats are written by `announce_version` and `record_heartbeat`. Raises `TooManyChanges`.
        """
        old, new = list_stored_values(before), list_stored_values(after)
        changes: list[Any] = [
            {"Delete": {"TableName": self.table, "Key": attributes({"pk": REGISTRY, "sk": sort_key})}}
            for sort_key in sorted(old.keys() - new.keys())
        ]
        for sort_key, (stored, value) in sorted(new.items()):
            if old.get(sort_key) != (stored, value):
                item = attributes({"pk": REGISTRY, "sk": sort_key, "value": stored.text(value)})
                changes.append({"Put": {"TableName": self.table, "Item": item}})
        if len(changes) > MAX_CHANGES:
            raise TooManyChanges(f"{len(changes)} queues and sessions at once; at most {MAX_CHANGES} can be written")
        if not changes and before.version == after.version:
            return revision
        new_head: Any = {
            "Put": {
                "TableName": self.table,
                "Item": attributes({"pk": REGISTRY, "sk": HEAD, "version": after.version, "revision": revision + 1}),
                "ConditionExpression": "attribute_not_exists(pk) OR revision = :revision",
                "ExpressionAttributeValues": attributes({":revision": revision}),
            }
        }
        try:
            with calls("TransactWriteItems"):
                self.client.transact_write_items(TransactItems=[new_head, *changes])
        except CallFailed as error:
            # Only another writer causes this error, not throttling or an item that is too large.
            if error.code == TRANSACTION_CANCELED and {*get_cancellation_codes(error)} <= BEATEN:
                return None
            raise
        return revision + 1

    def announce_version(self, splitter_id: str, *, version: int, at_ms: int) -> None:
        """Store the version of the registry by which a splitter routes, and the time of this announcement."""
        self._write_item(SPLITTERS, splitter_id, {"version": version, "at": at_ms}, at_ms=at_ms)

    def record_heartbeat(self, session_id: str, *, at_ms: int) -> None:
        """Store the time of a session's last heartbeat."""
        self._write_item(HEARTBEATS, session_id, {"at": at_ms}, at_ms=at_ms)

    def add_count(self, session_id: str, number: int, *, at_ms: int) -> None:
        """Add to the stored number of messages that were sent to a session."""
        with calls("UpdateItem"):
            self.client.update_item(
                TableName=self.table,
                Key=attributes({"pk": COUNTS, "sk": session_id}),
                UpdateExpression="ADD messages :number SET expires_at = :expires_at",
                ExpressionAttributeValues=attributes({":number": number, ":expires_at": at_ms // 1000 + COUNTED_FOR_S}),
            )

    def read_counts(self) -> Mapping[str, int]:
        """Read the number of messages that were sent to each session, by session id."""
        return {text(item, "sk"): number(item, "messages") for item in self._read_items(COUNTS)}

    def record_end(self, session_id: str, reason: str, *, at_ms: int) -> None:
        """Store the reason for a session's end, for an hour."""
        self._write_item(ENDED, session_id, {"reason": reason}, at_ms=at_ms)

    def find_ended_reason(self, session_id: str) -> str | None:
        """Read the reason for a session's end. Returns None if no reason is stored."""
        item = self._read_item(ENDED, session_id)
        return text(item, "reason") if item else None

    def claim_tick(self, *, due_at_ms: int, now_ms: int) -> bool:
        """Return whether the caller should send a tick due at this time: False if another tick is due by then."""
        return Ticks(self.client, self.table, "control").claim(due_at_ms=due_at_ms, now_ms=now_ms)

    def _write_item(self, partition: str, sort_key: str, values: Mapping[str, str | int], *, at_ms: int) -> None:
        item = attributes({"pk": partition, "sk": sort_key, **values, "expires_at": at_ms // 1000 + KEPT_S})
        with calls("PutItem"):
            self.client.put_item(TableName=self.table, Item=item)

    def _read_item(self, partition: str, sort_key: str) -> Item:
        """Read an item of the table. Returns an empty dict if it doesn't exist."""
        return get_item(self.client, self.table, attributes({"pk": partition, "sk": sort_key}))

    def _read_items(self, partition: str) -> Iterator[Item]:
        for page in query_pages(self.client, self.table, partition, ConsistentRead=True):
            yield from page


def list_stored_values(registry: Registry) -> Mapping[str, tuple[Format[Any], Any]]:
    """List the items to store for a registry, by sort key, each with its format."""
    return {
        prefix + name: (stored, value)
        for prefix, stored, field in KINDS
        for name, value in getattr(registry, field).items()
    }
