"""The book of offers in DynamoDB: `sluice.rendezvous.ports.OfferBook`.

    pk                 sk                           item
    offers#<shard>     <sent_at_ms>#<client_id>     an offer
    proxy#<sid>        match                        which offer a proxy was matched with
    waiting#<pool>     (see proxy_pools)            taken out by the transaction that claims a proxy

A partition of DynamoDB takes 1,000 writes a second and an offer needs some five, so offers stand in shards.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from sluice.aws.clients import calls, error_code
from sluice.aws.items import Item, attributes, delete_all, number, query_pages, text
from sluice.aws.rendezvous.proxy_pools import pool_key
from sluice.errors import CallFailed
from sluice.rendezvous.counts.events import PollEvent, matched_poll, read_event
from sluice.rendezvous.ports import Claim, OfferRecord, State
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.matching import PATIENCE_MS, Nat, WaitingProxy
from sluice.rendezvous.protocol.offers import Method

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

SHARDS = 4
MATCH_KEPT_S = 60 * 60  # longer than any answer takes to come
CONDITION_FAILED = "ConditionalCheckFailedException"
TRANSACTION_CANCELED = "TransactionCanceledException"
OFFER_ITEM = 2  # its place in the claim's transaction
NO_SITE = "-"  # of an event that isn't published yet: who publishes it says where


@dataclass(frozen=True, slots=True)
class DynamoOfferBook:
    """The book in one table, through a client."""

    client: "DynamoDBClient"
    table: str

    def record(self, offer: OfferRecord) -> OfferRecord | None:
        """See the port."""
        try:
            with calls("PutItem"):
                self.client.put_item(
                    TableName=self.table,
                    Item=_item(offer),
                    ConditionExpression="attribute_not_exists(pk)",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
        except CallFailed as error:
            earlier = _refused_item(error)
            if earlier is None:
                raise
            return _record(earlier)
        return None

    def claim(self, offer: OfferRecord, proxy: WaitingProxy, *, reply_to: str, now_ms: int) -> Claim:
        """See the port."""
        try:
            with calls("TransactWriteItems"):
                self.client.transact_write_items(
                    TransactItems=[
                        {"Delete": self._taken(proxy, now_ms=now_ms)},
                        {"Put": self._match_of(proxy, offer, now_ms=now_ms)},
                        {"Update": self._matched(offer, proxy, reply_to=reply_to, now_ms=now_ms)},
                    ]
                )
        except CallFailed as error:
            return _lost_claim(error)
        return Claim.WON

    def _taken(self, proxy: WaitingProxy, *, now_ms: int) -> Any:
        return {
            "TableName": self.table,
            "Key": pool_key(proxy),
            "ConditionExpression": "waits_until > :now",
            "ExpressionAttributeValues": attributes({":now": now_ms}),
        }

    def _match_of(self, proxy: WaitingProxy, offer: OfferRecord, *, now_ms: int) -> Any:
        # A proxy that polls twice under one name has one match at a time: its answer says no more than the name.
        return {
            "TableName": self.table,
            "Item": _match_key(proxy.sid)
            | attributes(
                {
                    "client_id": offer.client_id,
                    "sent_at": offer.sent_at_ms,
                    "expires_at": offer.sent_at_ms // 1000 + MATCH_KEPT_S,
                }
            ),
            "ConditionExpression": "attribute_not_exists(pk) OR sent_at < :over",
            "ExpressionAttributeValues": attributes({":over": now_ms - PATIENCE_MS}),
        }

    def _matched(self, offer: OfferRecord, proxy: WaitingProxy, *, reply_to: str, now_ms: int) -> Any:
        return {
            "TableName": self.table,
            "Key": _key(offer),
            "UpdateExpression": "SET #state = :matched, reply_to = :reply_to, poll_id = :poll_id, sid = :sid, "
            "mailbox = :mailbox, nat = :nat, country = :country, trace = :trace, poll = :poll",
            "ConditionExpression": "#state = :received",
            "ExpressionAttributeNames": {"#state": "state"},
            "ExpressionAttributeValues": attributes(
                {
                    ":matched": State.MATCHED,
                    ":received": State.RECEIVED,
                    ":reply_to": reply_to,
                    ":poll_id": proxy.poll_id,
                    ":sid": proxy.sid,
                    ":mailbox": proxy.mailbox,
                    ":nat": offer.nat,
                    ":country": offer.country,
                    ":trace": offer.trace or "",
                    ":poll": matched_poll(proxy, at_ms=now_ms).to_json(site=NO_SITE),
                }
            ),
        }

    def release(self, offer: OfferRecord, proxy: WaitingProxy) -> None:
        """See the port."""
        self._step(replace(offer, sid=proxy.sid), State.MATCHED, State.RECEIVED)

    def answer(self, sid: str) -> OfferRecord | None:
        """See the port."""
        with calls("GetItem"):
            match = self.client.get_item(TableName=self.table, Key=_match_key(sid), ConsistentRead=True).get("Item")
        if match is None:
            return None
        key = OfferRecord(
            client_id=text(match, "client_id"), sent_at_ms=number(match, "sent_at"), method=Method.SQS, sid=sid
        )
        return self._step(key, State.MATCHED, State.ANSWERED)

    def unanswer(self, offer: OfferRecord) -> None:
        """See the port."""
        self._step(offer, State.ANSWERED, State.MATCHED)

    def time_out(self, offer: OfferRecord) -> OfferRecord | None:
        """See the port."""
        return self._step(offer, State.MATCHED, State.TIMED_OUT)

    def _step(self, offer: OfferRecord, before: State, after: State) -> OfferRecord | None:
        """Moves an offer from one state to the next; None where it isn't in the first, or another proxy's."""
        condition = "#state = :before"
        values: dict[str, str | int] = {":before": before, ":after": after}
        if offer.sid:
            condition += " AND sid = :sid"
            values[":sid"] = offer.sid
        try:
            with calls("UpdateItem"):
                updated = self.client.update_item(
                    TableName=self.table,
                    Key=_key(offer),
                    UpdateExpression="SET #state = :after",
                    ConditionExpression=condition,
                    ExpressionAttributeNames={"#state": "state"},
                    ExpressionAttributeValues=attributes(values),
                    ReturnValues="ALL_NEW",
                )
        except CallFailed as error:
            if error.code == CONDITION_FAILED:
                return None
            raise
        return _record(updated["Attributes"])

    def matched(self, *, since_ms: int, until_ms: int) -> Sequence[OfferRecord]:
        """See the port."""
        found = [
            _record(item)
            for shard in range(SHARDS)
            for page in query_pages(
                self.client,
                TableName=self.table,
                ConsistentRead=True,
                KeyConditionExpression="pk = :pk AND sk BETWEEN :since AND :until",
                FilterExpression="#state = :matched",
                ExpressionAttributeNames={"#state": "state"},
                ExpressionAttributeValues=attributes(
                    {
                        ":pk": _shard_key(shard),
                        ":since": _sort_key(since_ms),
                        ":until": _sort_key(until_ms + 1),
                        ":matched": State.MATCHED,
                    }
                ),
            )
            for item in page
        ]
        return sorted(found, key=lambda offer: offer.sent_at_ms)

    def sent_before(self, until_ms: int) -> Iterator[Sequence[OfferRecord]]:
        """See the port."""
        for shard in range(SHARDS):
            for page in query_pages(
                self.client,
                TableName=self.table,
                ConsistentRead=True,
                KeyConditionExpression="pk = :pk AND sk < :until",
                ExpressionAttributeValues=attributes({":pk": _shard_key(shard), ":until": _sort_key(until_ms)}),
            ):
                yield [_record(item) for item in page]

    def forget(self, offers: Sequence[OfferRecord]) -> None:
        """See the port."""
        delete_all(self.client, self.table, [_key(offer) for offer in offers])


def _shard_key(shard: int) -> str:
    return f"offers#{shard}"


def _sort_key(sent_at_ms: int) -> str:
    return f"{max(sent_at_ms, 0):013d}"


def _key(offer: OfferRecord) -> dict[str, Any]:
    shard = zlib.crc32(offer.client_id.encode()) % SHARDS
    return attributes({"pk": _shard_key(shard), "sk": f"{_sort_key(offer.sent_at_ms)}#{offer.client_id}"})


def _match_key(sid: str) -> dict[str, Any]:
    return attributes({"pk": f"proxy#{sid}", "sk": "match"})


def _item(offer: OfferRecord) -> dict[str, Any]:
    # No expiry: the record of a queue goes when the queue has gone, and not before.
    return _key(offer) | attributes({"state": offer.state, "method": offer.method})


def _record(item: Item) -> OfferRecord:
    sent_at, _, client_id = text(item, "sk").partition("#")
    return OfferRecord(
        client_id=client_id,
        sent_at_ms=int(sent_at),
        method=Method(text(item, "method")),
        state=State(text(item, "state")),
        reply_to=text(item, "reply_to"),
        poll_id=text(item, "poll_id"),
        sid=text(item, "sid"),
        mailbox=text(item, "mailbox"),
        nat=Nat(text(item, "nat") or Nat.UNKNOWN),
        country=text(item, "country") or UNKNOWN_COUNTRY,
        trace=text(item, "trace") or None,
        poll=_poll(text(item, "poll")),
    )


def _poll(body: str) -> PollEvent | None:
    event = read_event(body) if body else None
    return event if isinstance(event, PollEvent) else None


def _refused_item(error: CallFailed) -> Item | None:
    """The item that stood in the way of a conditional put."""
    cause = error.__cause__
    if isinstance(cause, ClientError) and error_code(cause) == CONDITION_FAILED:
        return cause.response.get("Item")  # type: ignore[return-value]  # not in the stub's ClientError response
    return None


def _lost_claim(error: CallFailed) -> Claim:
    """Which condition cancelled the transaction; another claim on the same proxy at the same time counts as lost."""
    cause = error.__cause__
    if not isinstance(cause, ClientError) or error.code != TRANSACTION_CANCELED:
        raise error
    reasons = [reason.get("Code", "None") for reason in cause.response.get("CancellationReasons", [])]
    if reasons and reasons[OFFER_ITEM] == "ConditionalCheckFailed":
        return Claim.OFFER_TAKEN
    if set(reasons) <= {"None", "ConditionalCheckFailed", "TransactionConflict"}:
        return Claim.PROXY_TAKEN
    raise error
