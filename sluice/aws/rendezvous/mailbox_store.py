"""The mailboxes in DynamoDB, by creation time: `sluice.rendezvous.ports.MailboxBook`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.aws.clients import calls
from sluice.aws.items import attributes, delete_all, query_pages, text

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

PARTITION = "mailboxes"


@dataclass(frozen=True, slots=True)
class DynamoMailboxBook:
    """The book in one table, through a client. Its items have no expiry: only the sweeper forgets a queue."""

    client: "DynamoDBClient"
    table: str

    def note(self, name: str, *, created_at_ms: int) -> None:
        """See the port."""
        with calls("PutItem"):
            self.client.put_item(TableName=self.table, Item=_key(name, created_at_ms))

    def created_before(self, until_ms: int) -> Iterator[Sequence[tuple[str, int]]]:
        """See the port."""
        for page in query_pages(
            self.client,
            TableName=self.table,
            KeyConditionExpression="pk = :pk AND sk < :until",
            ExpressionAttributeValues=attributes({":pk": PARTITION, ":until": f"{max(until_ms, 0):013d}"}),
        ):
            yield [_parse(text(item, "sk")) for item in page]

    def forget(self, mailboxes: Sequence[tuple[str, int]]) -> None:
        """See the port."""
        delete_all(self.client, self.table, [_key(name, created_at_ms) for name, created_at_ms in mailboxes])


def _key(name: str, created_at_ms: int) -> dict[str, Any]:
    return attributes({"pk": PARTITION, "sk": f"{created_at_ms:013d}#{name}"})


def _parse(sort_key: str) -> tuple[str, int]:
    created_at_ms, _, name = sort_key.partition("#")
    return name, int(created_at_ms)
