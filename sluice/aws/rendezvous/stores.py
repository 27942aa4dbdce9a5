"""Offers, waiting proxies and mailboxes in DynamoDB: the stores of `sluice.rendezvous.ports` but the statistics'.

    pk                 sk                                          item
    offers#<shard>     <sent_at_ms>#<client_id>                    an offer; once matched, with the proxy's item in it
    proxy#<sid>        match                                       which offer a proxy was matched with
    waiting#<pool>     <clients>#<polled_at_ms>#<poll_id>          a proxy whose poll is held open
    demand#<pool>      <ten seconds>                               how many offers asked for the pool in them
    mailboxes          <created_at_ms>#<name>                      a mailbox

A claim is one transaction over an offer, its match and a waiting proxy. A partition of DynamoDB takes 1,000 writes a
second and an offer needs some five, so offers stand in shards. Every method may raise `CallFailed`.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sluice.aws.clients import calls
from sluice.aws.items import (
    CONDITION_FAILED,
    TRANSACTION_CANCELED,
    Item,
    attributes,
    cancellation_codes,
    delete_all,
    number,
    query_pages,
    standing_item,
    text,
)
from sluice.errors import CallFailed
from sluice.rendezvous.ports import Claim, OfferRecord, OfferState
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.matching import HOLD_MS, PATIENCE_MS, Nat, Pool, Profile, WaitingProxy
from sluice.rendezvous.protocol.messages import OfferMethod

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

SHARDS = 4
KEPT_S = 60 * 60  # a match, which is longer than any answer takes to come; what a function that died left behind
OFFER_ITEM = 2  # its place in the claim's transaction
MAX_CLIENTS = 999_999  # what a sort key has room for; a proxy that claims more is last anyway
MAILBOXES = "mailboxes"


@dataclass(frozen=True, slots=True)
class DynamoOfferStore:
    """The offers in one table, through a client. They don't expire: a queue's record goes when the queue has gone."""

    client: "DynamoDBClient"
    table: str

    def record(self, offer: OfferRecord) -> OfferRecord | None:
        """Write a received offer; where it is there already, return it as it stands."""
        try:
            with calls("PutItem"):
                self.client.put_item(
                    TableName=self.table,
                    Item=_offer_key(offer) | attributes({"state": offer.state, "method": offer.method}),
                    ConditionExpression="attribute_not_exists(pk)",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
        except CallFailed as error:
            earlier = standing_item(error)
            if earlier is None:
                raise
            return offer_record(earlier)
        return None

    def claim(self, offer: OfferRecord, proxy: WaitingProxy, *, reply_to: str, now_ms: int) -> Claim:
        """Take the proxy out of its pool for this offer: all or nothing, and for one offer only."""
        taken = {
            "TableName": self.table,
            "Key": _proxy_key(proxy),
            "ConditionExpression": "waits_until > :now",
            "ExpressionAttributeValues": attributes({":now": now_ms}),
        }
        match: dict[str, str | int] = {
            "client_id": offer.client_id,
            "sent_at": offer.sent_at_ms,
            "expires_at": offer.sent_at_ms // 1000 + KEPT_S,
        }
        # A proxy that polls twice under one name has one match at a time: its answer says no more than the name.
        matched_with = {
            "TableName": self.table,
            "Item": _match_key(proxy.sid) | attributes(match),
            "ConditionExpression": "attribute_not_exists(pk) OR sent_at < :over",
            "ExpressionAttributeValues": attributes({":over": now_ms - PATIENCE_MS}),
        }
        matched: dict[str, str | int] = {
            "state": OfferState.MATCHED,
            "reply_to": reply_to,
            "nat": offer.nat,
            "country": offer.country,
            "trace": offer.trace or "",
            "matched_at": now_ms,
            "pool": proxy.pool,
            "place": _place(proxy),
            **_proxy_values(proxy),
        }
        update = {
            "TableName": self.table,
            "Key": _offer_key(offer),
            "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in matched),
            "ConditionExpression": "#state = :received",
            "ExpressionAttributeNames": {f"#{name}": name for name in matched},
            "ExpressionAttributeValues": attributes(
                {":received": OfferState.RECEIVED} | {f":{name}": value for name, value in matched.items()}
            ),
        }
        writes: Any = [{"Delete": taken}, {"Put": matched_with}, {"Update": update}]
        try:
            with calls("TransactWriteItems"):
                self.client.transact_write_items(TransactItems=writes)
        except CallFailed as error:
            if error.code != TRANSACTION_CANCELED:
                raise
            codes = cancellation_codes(error)
            if codes and codes[OFFER_ITEM] == "ConditionalCheckFailed":
                return Claim.OFFER_TAKEN
            # Another claim on the same proxy at the same time counts as lost.
            if set(codes) <= {"None", "ConditionalCheckFailed", "TransactionConflict"}:
                return Claim.PROXY_TAKEN
            raise
        return Claim.WON

    def release(self, offer: OfferRecord, proxy: WaitingProxy) -> None:
        """Undo a won claim whose proxy turned out to be gone; the proxy doesn't go back to the pool."""
        self._move(offer, OfferState.MATCHED, OfferState.RECEIVED, sid=proxy.sid)

    def answer(self, sid: str) -> OfferRecord | None:
        """End the offer that this proxy was matched with as answered; None where no offer of its waits for that."""
        with calls("GetItem"):
            match = self.client.get_item(TableName=self.table, Key=_match_key(sid), ConsistentRead=True).get("Item")
        if match is None:
            return None
        offer = OfferRecord(
            client_id=text(match, "client_id"), sent_at_ms=number(match, "sent_at"), method=OfferMethod.SQS
        )
        return self._move(offer, OfferState.MATCHED, OfferState.ANSWERED, sid=sid)

    def unanswer(self, offer: OfferRecord) -> None:
        """Undo `answer` where the answer could not be sent, so that the time-out still reaches the client."""
        self._move(offer, OfferState.ANSWERED, OfferState.MATCHED, sid=offer.proxy.sid if offer.proxy else "")

    def time_out(self, offer: OfferRecord) -> OfferRecord | None:
        """End a matched offer without an answer, and return it; None where its answer came first."""
        sid = offer.proxy.sid if offer.proxy else ""
        return self._move(offer, OfferState.MATCHED, OfferState.TIMED_OUT, sid=sid)

    def _move(self, offer: OfferRecord, before: OfferState, after: OfferState, *, sid: str) -> OfferRecord | None:
        """Move an offer from one state to the next; None where it isn't in the first, or another proxy's than `sid`."""
        of_proxy: dict[str, str | int] = {":sid": sid} if sid else {}
        try:
            with calls("UpdateItem"):
                updated = self.client.update_item(
                    TableName=self.table,
                    Key=_offer_key(offer),
                    UpdateExpression="SET #state = :after",
                    ConditionExpression="#state = :before" + (" AND sid = :sid" if sid else ""),
                    ExpressionAttributeNames={"#state": "state"},
                    ExpressionAttributeValues=attributes({":before": before, ":after": after} | of_proxy),
                    ReturnValues="ALL_NEW",
                )
        except CallFailed as error:
            if error.code == CONDITION_FAILED:
                return None
            raise
        return offer_record(updated["Attributes"])

    def matched(self, *, since_ms: int, until_ms: int) -> Sequence[OfferRecord]:
        """Find the offers sent in [since, until] that wait for their proxy's answer, oldest first."""
        pages = self._pages(
            "sk BETWEEN :since AND :until",
            {":since": _milliseconds(since_ms), ":until": _milliseconds(until_ms + 1), ":matched": OfferState.MATCHED},
            FilterExpression="#state = :matched",
            ExpressionAttributeNames={"#state": "state"},
        )
        return sorted((offer for page in pages for offer in page), key=lambda offer: offer.sent_at_ms)

    def sent_before(self, until_ms: int) -> Iterator[Sequence[OfferRecord]]:
        """Read all offers sent before, page by page, oldest first within a shard."""
        return self._pages("sk < :until", {":until": _milliseconds(until_ms)})

    def _pages(self, condition: str, values: dict[str, str | int], **how: Any) -> Iterator[Sequence[OfferRecord]]:
        """Read offers of all shards, one after the other."""
        for shard in range(SHARDS):
            for page in query_pages(
                self.client,
                TableName=self.table,
                ConsistentRead=True,
                KeyConditionExpression=f"pk = :pk AND {condition}",
                ExpressionAttributeValues=attributes({":pk": f"offers#{shard}"} | values),
                **how,
            ):
                yield [offer_record(item) for item in page]

    def forget(self, offers: Sequence[OfferRecord]) -> None:
        """Delete them."""
        delete_all(self.client, self.table, [_offer_key(offer) for offer in offers])


@dataclass(frozen=True, slots=True)
class DynamoProxyPools:
    """The pools of waiting proxies in one table, through a client."""

    client: "DynamoDBClient"
    table: str

    def enter(self, proxy: WaitingProxy) -> None:
        """Add a proxy to its pool."""
        expires_at = proxy.polled_at_ms // 1000 + KEPT_S
        values: dict[str, str | int] = {"waits_until": proxy.waits_until_ms, "expires_at": expires_at}
        with calls("PutItem"):
            self.client.put_item(
                TableName=self.table, Item=_proxy_key(proxy) | attributes(_proxy_values(proxy) | values)
            )

    def leave(self, proxy: WaitingProxy) -> bool:
        """Take an unmatched proxy out; False where an offer has claimed it."""
        with calls("DeleteItem"):
            deleted = self.client.delete_item(TableName=self.table, Key=_proxy_key(proxy), ReturnValues="ALL_OLD")
        return bool(deleted.get("Attributes"))

    def waiting(self, pool: Pool, *, limit: int) -> Sequence[WaitingProxy]:
        """Read who is in the pool, fewest clients first, then longest waiting. Some may have given up unseen."""
        with calls("Query"):
            found = self.client.query(
                TableName=self.table,
                ConsistentRead=True,
                KeyConditionExpression="pk = :pk",
                ExpressionAttributeValues=attributes({":pk": f"waiting#{pool}"}),
                Limit=limit,
            )
        return [waiting_proxy(pool, item["sk"]["S"], item) for item in found["Items"]]

    def count(self, pool: Pool, *, now_ms: int) -> int:
        """Count who waits, roughly (eventually consistent).

        At most what one page of a query holds, some 5,000: more is enough for any demand.
        """
        counted: int = self._still_waiting(pool, now_ms=now_ms, Select="COUNT")["Count"]
        return counted

    def profiles(self, pool: Pool, *, now_ms: int) -> Sequence[Profile]:
        """Read what is known of those that `count` counts."""
        items = self._still_waiting(pool, now_ms=now_ms)["Items"]
        return [waiting_proxy(pool, item["sk"]["S"], item).profile for item in items]

    def _still_waiting(self, pool: Pool, *, now_ms: int, **how: Any) -> Any:
        with calls("Query"):
            return self.client.query(
                TableName=self.table,
                KeyConditionExpression="pk = :pk",
                FilterExpression="waits_until > :now",
                ExpressionAttributeValues=attributes({":pk": f"waiting#{pool}", ":now": now_ms}),
                **how,
            )

    def note_offers(self, pool: Pool, number: int, *, now_ms: int) -> None:
        """Count offers that asked for this pool."""
        with calls("UpdateItem"):
            self.client.update_item(
                TableName=self.table,
                Key=attributes({"pk": f"demand#{pool}", "sk": f"{now_ms // HOLD_MS:011d}"}),
                UpdateExpression="ADD offers :number SET expires_at = :expires_at",
                ExpressionAttributeValues=attributes({":number": number, ":expires_at": now_ms // 1000 + KEPT_S}),
            )

    def recent_offers(self, pool: Pool, *, now_ms: int) -> int:
        """Say how many offers asked for this pool in the last hold time, at its busiest."""
        since = f"{(now_ms - HOLD_MS) // HOLD_MS:011d}"
        with calls("Query"):
            found = self.client.query(
                TableName=self.table,
                KeyConditionExpression="pk = :pk AND sk >= :since",
                ExpressionAttributeValues=attributes({":pk": f"demand#{pool}", ":since": since}),
            )
        return max((number(item, "offers") for item in found["Items"]), default=0)


@dataclass(frozen=True, slots=True)
class DynamoMailboxStore:
    """The mailboxes in one table, through a client. Their items don't expire: only the sweeper forgets a queue."""

    client: "DynamoDBClient"
    table: str

    def note(self, name: str, *, created_at_ms: int) -> None:
        """Write down a mailbox that is about to be made."""
        with calls("PutItem"):
            self.client.put_item(TableName=self.table, Item=_mailbox_key(name, created_at_ms))

    def created_before(self, until_ms: int) -> Iterator[Sequence[tuple[str, int]]]:
        """Read names and creation times, page by page, oldest first."""
        for page in query_pages(
            self.client,
            TableName=self.table,
            KeyConditionExpression="pk = :pk AND sk < :until",
            ExpressionAttributeValues=attributes({":pk": MAILBOXES, ":until": _milliseconds(until_ms)}),
        ):
            keys = [text(item, "sk").partition("#") for item in page]
            yield [(name, int(created_at_ms)) for created_at_ms, _, name in keys]

    def forget(self, mailboxes: Sequence[tuple[str, int]]) -> None:
        """Delete the notes."""
        delete_all(self.client, self.table, [_mailbox_key(*mailbox) for mailbox in mailboxes])


def offer_record(item: Item) -> OfferRecord:
    """Read an offer's item."""
    sent_at, _, client_id = text(item, "sk").partition("#")
    place = text(item, "place")
    return OfferRecord(
        client_id=client_id,
        sent_at_ms=int(sent_at),
        method=OfferMethod(text(item, "method")),
        state=OfferState(text(item, "state")),
        reply_to=text(item, "reply_to"),
        proxy=waiting_proxy(Pool(text(item, "pool")), place, item) if place else None,
        matched_at_ms=number(item, "matched_at"),
        nat=Nat(text(item, "nat") or Nat.UNKNOWN),
        country=text(item, "country") or UNKNOWN_COUNTRY,
        trace=text(item, "trace") or None,
    )


def waiting_proxy(pool: Pool, place: str, item: Item) -> WaitingProxy:
    """Read a proxy's item, or what a matched offer's has of it. `place` is its sort key in the pool."""
    clients, polled_at_ms, poll_id = place.split("#", 2)
    profile = json.loads(item["profile"]["S"])
    return WaitingProxy(
        poll_id=poll_id,
        sid=item["sid"]["S"],
        pool=pool,
        clients=int(clients),
        polled_at_ms=int(polled_at_ms),
        mailbox=item["mailbox"]["S"],
        profile=Profile(**profile | {"nat": Nat(profile["nat"])}),
    )


def _proxy_values(proxy: WaitingProxy) -> dict[str, str | int]:
    return {"sid": proxy.sid, "mailbox": proxy.mailbox, "profile": json.dumps(asdict(proxy.profile))}


def _place(proxy: WaitingProxy) -> str:
    """Write a proxy's place in its pool: its order."""
    return f"{min(proxy.clients, MAX_CLIENTS):06d}#{proxy.polled_at_ms:013d}#{proxy.poll_id}"


def _proxy_key(proxy: WaitingProxy) -> dict[str, Any]:
    return attributes({"pk": f"waiting#{proxy.pool}", "sk": _place(proxy)})


def _offer_key(offer: OfferRecord) -> dict[str, Any]:
    shard = zlib.crc32(offer.client_id.encode()) % SHARDS
    return attributes({"pk": f"offers#{shard}", "sk": f"{_milliseconds(offer.sent_at_ms)}#{offer.client_id}"})


def _match_key(sid: str) -> dict[str, Any]:
    return attributes({"pk": f"proxy#{sid}", "sk": "match"})


def _mailbox_key(name: str, created_at_ms: int) -> dict[str, Any]:
    return attributes({"pk": MAILBOXES, "sk": f"{_milliseconds(created_at_ms)}#{name}"})


def _milliseconds(at_ms: int) -> str:
    return f"{max(at_ms, 0):013d}"
