"""The registry of splits and sessions in DynamoDB: `sluice.splitting.ports.RegistryStore`.

pk           sk                  item
registry     head                version, and the revision that changes with every write
registry     queue#<name>        a temporary queue
registry     session#<id>        a session
registry     split#<id>          a split queue
splitters    <id>                what a splitter routes by, and since when; outside of any revision
heartbeats   <session id>        when a session's owner was last heard of; outside of any revision
counts       <session id>        how many messages a session was sent
ended        <session id>        why a session that is gone ended
ticks        control             when the next tick comes
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from sluice.aws.clients import calls
from sluice.aws.items import Item, attributes, number, query_pages, text
from sluice.aws.ticks import Ticks
from sluice.errors import BadConfiguration, CallFailed
from sluice.splitting.sessions.codec import decode_queue, decode_session, decode_split, encode
from sluice.splitting.sessions.lifecycle import Registry, Session, Sighting

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

REGISTRY = "registry"
SPLITTERS = "splitters"
HEARTBEATS = "heartbeats"
COUNTS = "counts"
ENDED = "ended"
HEAD = "head"
KEPT_S = 60 * 60  # of what nobody renews
COUNTED_FOR_S = 7 * 24 * 60 * 60
CONDITION_FAILED = "ConditionalCheckFailedException"
MAX_CHANGES = 99  # of a transaction, beside the head
MAX_READS = 10  # of a registry that changes while its pages are read
TRANSACTION_CANCELED = "TransactionCanceledException"

Values = Mapping[str, str]  # sort key to text


class TooManyChanges(BadConfiguration):
    """One event changes more of the registry than one transaction can write."""


@dataclass(frozen=True, slots=True)
class DynamoRegistryStore:
    """The registry in one table, through a client."""

    client: "DynamoDBClient"
    table: str

    def version(self) -> int:
        """See the port."""
        return number(self._head(), "version")

    def load(self) -> tuple[Registry, int]:
        """See the port. Its pages are read again where it changed between them."""
        for _ in range(MAX_READS):
            items = list(self._items(REGISTRY))
            head = next((item for item in items if text(item, "sk") == HEAD), {})
            if number(self._head(), "revision") == number(head, "revision"):
                return self._registry(head, items), number(head, "revision")
        raise CallFailed("Query", "Changing", f"the registry changed during each of {MAX_READS} reads")

    def _registry(self, head: Item, items: Sequence[Item]) -> Registry:
        texts = {text(item, "sk"): text(item, "value") for item in items}
        heartbeats = {text(item, "sk"): number(item, "at") for item in self._items(HEARTBEATS)}
        sessions = (_heard(decode_session(value), heartbeats) for value in _of("session", texts))
        queues = (decode_queue(value) for value in _of("queue", texts))
        splits = (decode_split(value) for value in _of("split", texts))
        return Registry(
            version=number(head, "version"),
            splits={split.queue_id: split for split in splits},
            sessions={session.session_id: session for session in sessions},
            queues={queue.name: queue for queue in queues},
            splitters={
                text(item, "sk"): Sighting(number(item, "version"), number(item, "at"))
                for item in self._items(SPLITTERS)
            },
        )

    def session(self, session_id: str) -> Session | None:
        """See the port."""
        item = self._item(_key(f"session#{session_id}"))
        return decode_session(text(item, "value")) if item else None

    def save(self, before: Registry, after: Registry, *, revision: int) -> bool:
        """See the port. Splitters and heartbeats aren't written: they have writers of their own."""
        changes = list(self._changes(_values(before), _values(after)))
        if len(changes) > MAX_CHANGES:
            raise TooManyChanges(f"{len(changes)} queues and sessions at once; at most {MAX_CHANGES} can be written")
        if not changes and before.version == after.version:
            return True
        try:
            with calls("TransactWriteItems"):
                self.client.transact_write_items(
                    TransactItems=[self._new_head(after.version, revision=revision), *changes]
                )
        except CallFailed as error:
            if error.code == TRANSACTION_CANCELED and cancelled_by_a_condition(error):
                return False
            raise
        return True

    def announce(self, splitter_id: str, *, version: int, at_ms: int) -> None:
        """See the port."""
        self._note(SPLITTERS, splitter_id, {"version": version, "at": at_ms, "expires_at": at_ms // 1000 + KEPT_S})

    def heartbeat(self, session_id: str, *, at_ms: int) -> None:
        """See the port."""
        self._note(HEARTBEATS, session_id, {"at": at_ms, "expires_at": at_ms // 1000 + KEPT_S})

    def count(self, session_id: str, number: int, *, at_ms: int) -> None:
        """See the port."""
        with calls("UpdateItem"):
            self.client.update_item(
                TableName=self.table,
                Key=attributes({"pk": COUNTS, "sk": session_id}),
                UpdateExpression="ADD messages :number SET expires_at = :expires_at",
                ExpressionAttributeValues=attributes({":number": number, ":expires_at": at_ms // 1000 + COUNTED_FOR_S}),
            )

    def counts(self) -> Mapping[str, int]:
        """See the port."""
        return {text(item, "sk"): number(item, "messages") for item in self._items(COUNTS)}

    def note_ended(self, session_id: str, reason: str, *, at_ms: int) -> None:
        """See the port."""
        self._note(ENDED, session_id, {"reason": reason, "expires_at": at_ms // 1000 + KEPT_S})

    def ended_reason(self, session_id: str) -> str | None:
        """See the port."""
        item = self._item(attributes({"pk": ENDED, "sk": session_id}))
        return text(item, "reason") if item else None

    def claim_tick(self, *, due_at_ms: int, now_ms: int) -> bool:
        """See the port."""
        return Ticks(self.client, self.table, "control").claim(due_at_ms=due_at_ms, now_ms=now_ms)

    def _note(self, partition: str, sort_key: str, values: dict[str, str | int]) -> None:
        with calls("PutItem"):
            self.client.put_item(TableName=self.table, Item=attributes({"pk": partition, "sk": sort_key, **values}))

    def _head(self) -> Item:
        return self._item(_key(HEAD))

    def _item(self, key: dict[str, Any]) -> Item:
        """An item, empty where it isn't there."""
        with calls("GetItem"):
            return self.client.get_item(TableName=self.table, Key=key, ConsistentRead=True).get("Item", {})

    def _items(self, partition: str) -> Iterator[Item]:
        pages = query_pages(
            self.client,
            TableName=self.table,
            ConsistentRead=True,
            KeyConditionExpression="pk = :pk",
            ExpressionAttributeValues=attributes({":pk": partition}),
        )
        for page in pages:
            yield from page

    def _new_head(self, version: int, *, revision: int) -> Any:
        return {
            "Put": {
                "TableName": self.table,
                "Item": _key(HEAD) | attributes({"version": version, "revision": revision + 1}),
                "ConditionExpression": "attribute_not_exists(pk) OR revision = :revision",
                "ExpressionAttributeValues": attributes({":revision": revision}),
            }
        }

    def _changes(self, before: Values, after: Values) -> Iterator[Any]:
        for sort_key in sorted(before.keys() - after.keys()):
            yield {"Delete": {"TableName": self.table, "Key": _key(sort_key)}}
        for sort_key, value in sorted(after.items()):
            if before.get(sort_key) != value:
                yield {"Put": {"TableName": self.table, "Item": _key(sort_key) | attributes({"value": value})}}


def cancelled_by_a_condition(error: CallFailed) -> bool:
    """Whether somebody else's write cancelled a transaction, and not throttling or an item that is too large."""
    cause = error.__cause__
    found = cause.response.get("CancellationReasons", []) if isinstance(cause, ClientError) else []
    return {reason.get("Code", "None") for reason in found} <= {"None", "ConditionalCheckFailed", "TransactionConflict"}


def _key(sort_key: str) -> dict[str, Any]:
    return attributes({"pk": REGISTRY, "sk": sort_key})


def _of(kind: str, texts: Values) -> Iterator[str]:
    return (value for sort_key, value in texts.items() if sort_key.startswith(f"{kind}#"))


def _heard(session: Session, heartbeats: Mapping[str, int]) -> Session:
    at_ms = max(session.heartbeat_at_ms, heartbeats.get(session.session_id, 0))
    return replace(session, heartbeat_at_ms=at_ms)


def _values(registry: Registry) -> Values:
    splits = {f"split#{split.queue_id}": encode(split) for split in registry.splits.values()}
    sessions = {f"session#{session.session_id}": encode(session) for session in registry.sessions.values()}
    queues = {f"queue#{queue.name}": encode(queue) for queue in registry.queues.values()}
    return splits | sessions | queues
