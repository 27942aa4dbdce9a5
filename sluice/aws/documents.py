"""Values of any size in DynamoDB, replaced as a whole.

pk                sk              item
document#<name>   head            version, and where its parts are
document#<name>   <token>#<n>     the n-th part of a version

Parts are written first, under a name of their own; then the head, on the condition that it is still the one that was
read. The head is small: to look for a new version costs half a read unit, however large the value is. Parts never
change: who has read a version reads none of it again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.aws.clients import calls
from sluice.aws.items import CONDITION_FAILED, Item, attributes, delete_all, get_item, number, text
from sluice.errors import CallFailed

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

EXCHANGES = "exchanges"  # the document that the routing table is in
LINKS = "links"  # the document that the registry of links is in
PEERS = "peers"
HEAD = "head"
PART_BYTES = 380 * 1024  # an item has 400 KB, keys and all
MAX_READS = 10  # of a value that is replaced while its parts are read


@dataclass(slots=True, kw_only=True)
class DynamoDocument:
    """One value in a table. `new_token` gives a text that nobody else draws. Not for threads."""

    client: "DynamoDBClient"
    table: str
    name: str
    new_token: Callable[[], str]
    _head: Item = field(default_factory=dict)  # the last one whose parts were read, or written
    _content: bytes = b""

    def version(self) -> int:
        """Read the version: one small read; 0 before the first save. Raises `CallFailed`."""
        return number(self._item(HEAD), "version")

    def load(self) -> tuple[bytes | None, int]:
        """Read the bytes and their version; None before the first save. Raises `CallFailed`.

        Parts that were replaced while they were read are read again, ten times at most.
        """
        for _ in range(MAX_READS):
            head = self._item(HEAD)
            if not head:
                return None, 0
            if head != self._head:
                parts = [self._item(key) for key in _keys(head)]
                if not all(parts):
                    continue
                self._head, self._content = head, b"".join(part["data"]["B"] for part in parts)
            return self._content, number(head, "version")
        raise CallFailed("GetItem", "Changing", f"{self.name} was replaced during each of {MAX_READS} reads")

    def save(self, content: bytes, *, after: int) -> bool:
        """Write version `after` + 1, in parts; False where somebody else has written since. Raises `CallFailed`."""
        before = self._head if self._head and number(self._head, "version") == after else self._item(HEAD)
        if number(before, "version") != after:
            return False
        token, starts = self.new_token(), range(0, max(len(content), 1), PART_BYTES)
        head: dict[str, str | int] = {"version": after + 1, "token": token, "parts": len(starts)}
        for place, start in enumerate(starts):
            with calls("PutItem"):
                key = self._key(f"{token}#{place}")
                self.client.put_item(
                    TableName=self.table, Item={**key, "data": {"B": content[start : start + PART_BYTES]}}
                )
        try:
            with calls("PutItem"):
                self.client.put_item(
                    TableName=self.table,
                    Item={**self._key(HEAD), **attributes(head)},
                    ConditionExpression="attribute_not_exists(pk) OR version = :after",
                    ExpressionAttributeValues=attributes({":after": after}),
                )
            is_ours = True
        except CallFailed as error:
            if error.code != CONDITION_FAILED:
                raise
            # It may have been written by an earlier attempt, whose answer was lost: then its parts are read.
            is_ours = text(self._item(HEAD), "token") == token
        if is_ours:
            self._head, self._content = {**self._key(HEAD), **attributes(head)}, content
        # What nobody will read: the version before, or the one that came too late.
        unread = _keys(before if is_ours else attributes(head))
        delete_all(self.client, self.table, [self._key(key) for key in unread])
        return is_ours

    def _item(self, sort_key: str) -> Item:
        return get_item(self.client, self.table, self._key(sort_key))

    def _key(self, sort_key: str) -> dict[str, dict[str, str]]:
        return attributes({"pk": f"document#{self.name}", "sk": sort_key})


def _keys(head: Item) -> list[str]:
    return [f"{text(head, 'token')}#{place}" for place in range(number(head, "parts"))]
