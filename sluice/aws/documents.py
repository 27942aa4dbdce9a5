"""Values of any size in DynamoDB, replaced as a whole.

pk                sk              item
document#<name>   head            version, and the name of its parts
document#<name>   <token>#<n>     the n-th part of a version

The parts are written first, under a new name; then the head, on the condition that it hasn't changed since it was read.
The head is small, so a check for a new version costs half a read unit, however large the value is. Parts never change,
so a cached version need not be read again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.clients import calls
from sluice.aws.items import Item, attributes, delete_all, get_item, number, text, write_if
from sluice.errors import CallFailed

EXCHANGES = "exchanges"  # the document with the routing table
LINKS = "links"  # the document with the registry of links
PEERS = "peers"
HEAD = "head"
PART_BYTES = 380 * 1024  # less than DynamoDB's limit of 400 KB for an item with its keys
MAX_READS = 10  # maximum number of reads, if other writers keep replacing the value


@dataclass(slots=True, kw_only=True)
class DynamoDocument:
    """Stores one value in a table as a whole. `new_token` returns a unique text. Not thread-safe."""

    client: DynamoDBClient
    table: str
    name: str
    new_token: Callable[[], str]
    _head: Item = field(default_factory=dict)  # the head of the version that was last read or written completely
    _content: bytes = b""

    def version(self) -> int:
        """Read the current version's number, in one small read; 0 before the first save. Raises `CallFailed`."""
        return number(self._read_item(HEAD), "version")

    def load(self) -> tuple[bytes | None, int]:
        """Read the value and its version; the value is None before the first save. Raises `CallFailed`.

        If another writer replaces the value during the read, the read is repeated, up to ten times.
        """
        for _ in range(MAX_READS):
            head = self._read_item(HEAD)
            if not head:
                return None, 0
            if head != self._head:
                parts = [self._read_item(key) for key in _list_part_keys(head)]
                if not all(parts):
                    continue
                self._head, self._content = head, b"".join(part["data"]["B"] for part in parts)
            return self._content, number(head, "version")
        raise CallFailed("GetItem", "Changing", f"{self.name} was replaced during each of {MAX_READS} reads")

    def save(self, content: bytes, *, after: int) -> bool:
        """Write the value as version `after` + 1. Returns False if another writer was faster. Raises `CallFailed`."""
        before = self._head if self._head and number(self._head, "version") == after else self._read_item(HEAD)
        if number(before, "version") != after:
            return False
        token, starts = self.new_token(), range(0, max(len(content), 1), PART_BYTES)
        head: dict[str, str | int] = {"version": after + 1, "token": token, "parts": len(starts)}
        for place, start in enumerate(starts):
            with calls("PutItem"):
                key = self._build_key(f"{token}#{place}")
                self.client.put_item(
                    TableName=self.table, Item={**key, "data": {"B": content[start : start + PART_BYTES]}}
                )
        item = {**self._build_key(HEAD), **attributes(head)}
        condition = "attribute_not_exists(pk) OR version = :after"
        existing = write_if(self.client, self.table, item, condition, {":after": after})
        # An earlier attempt may have written the head, with its response lost. Then the head has this call's token.
        is_ours = existing is None or text(existing, "token") == token
        if is_ours:
            self._head, self._content = item, content
        # The unread parts are the previous version's, or this call's own if another writer was faster.
        unread = _list_part_keys(before if is_ours else attributes(head))
        delete_all(self.client, self.table, [self._build_key(key) for key in unread])
        return is_ours

    def _read_item(self, sort_key: str) -> Item:
        return get_item(self.client, self.table, self._build_key(sort_key))

    def _build_key(self, sort_key: str) -> dict[str, dict[str, str]]:
        return attributes({"pk": f"document#{self.name}", "sk": sort_key})


def _list_part_keys(head: Item) -> list[str]:
    return [f"{text(head, 'token')}#{place}" for place in range(number(head, "parts"))]
