"""The mailboxes in DynamoDB: `sluice.rendezvous.ports.MailboxStore`.

pk           sk                         item
mailboxes    <created_at_ms>#<name>     a mailbox
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.aws.clients import calls
from sluice.aws.items import attributes, delete_all, query_pages, text
from sluice.aws.rendezvous.items import milliseconds

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

MAILBOXES = "mailboxes"


class DynamoMailboxStore(msgspec.Struct, frozen=True):
    """The mailboxes in one table, through a client. Their items don't expire: only the sweeper forgets a queue."""

    client: "DynamoDBClient"
    table: str

    def note(self, name: str, *, created_at_ms: int) -> None:
        """Write down a mailbox that is about to be made."""
        with calls("PutItem"):
            self.client.put_item(TableName=self.table, Item=_key(name, created_at_ms))

    def created_before(self, until_ms: int) -> Iterator[Sequence[tuple[str, int]]]:
        """Read names and creation times, page by page, oldest first."""
        for page in query_pages(
            self.client,
            TableName=self.table,
            KeyConditionExpression="pk = :pk AND sk < :until",
            ExpressionAttributeValues=attributes({":pk": MAILBOXES, ":until": milliseconds(until_ms)}),
        ):
            keys = [text(item, "sk").partition("#") for item in page]
            yield [(name, int(created_at_ms)) for created_at_ms, _, name in keys]

    def forget(self, mailboxes: Sequence[tuple[str, int]]) -> None:
        """Delete the notes."""
        delete_all(self.client, self.table, [_key(*mailbox) for mailbox in mailboxes])


def _key(name: str, created_at_ms: int) -> dict[str, Any]:
    return attributes({"pk": MAILBOXES, "sk": f"{milliseconds(created_at_ms)}#{name}"})
