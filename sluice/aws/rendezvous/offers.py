"""The offers of the last minutes in DynamoDB, and what proxies were given: `sluice.rendezvous.ports.OfferStore`.

    pk                 sk                          item
    offers#<shard>     <sent_at_ms>#<client_id>    an offer, until its queue is swept
    proxy#<sid>        match                       the offer that a proxy was given, or that its poll is over

No transaction: a proxy is given an offer by one conditional write to its own item, and its answer is taken by one to
the offer's. A partition of DynamoDB takes 1,000 writes a second and an offer needs three, so offers stand in shards.
Every method may raise `CallFailed`.
"""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict, replace

from sluice.aws.clients import calls
from sluice.aws.items import CONDITION_FAILED, Item, attributes, delete_all, number, query_pages, standing_item, text
from sluice.aws.rendezvous.items import milliseconds, read_each, read_profile
from sluice.errors import CallFailed
from sluice.rendezvous.counts.stream import OFFERS_PREFIX
from sluice.rendezvous.ports import Match, OfferRecord, OfferState, OpenOffer
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.matching import Nat, WaitingProxy, shard_of
from sluice.rendezvous.protocol.messages import OfferMethod

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

SHARDS = 8
MATCH_KEPT_S = 60 * 60  # which is longer than any answer takes to come
# A Sid is all that an answer says of its proxy: so it is given no other offer while an answer may still come.
SID_RESTS_MS = 10_000
EARLIER_STATES = {"matched": OfferState.RECEIVED}  # as the version before wrote them


class DynamoOfferStore(msgspec.Struct, frozen=True):
    """The offers in one table, through a client. They don't expire: a queue's record goes when the queue has gone."""

    client: "DynamoDBClient"
    table: str

    def record(self, offer: OfferRecord) -> bool:
        """Write a received offer; False where another delivery has."""
        values = {
            "state": offer.state,
            "method": offer.method,
            "nat": offer.nat,
            "country": offer.country,
            "trace": offer.trace or "",
            "token": offer.token,
        }
        standing = self._put(_offer_key(offer) | attributes(values), "attribute_not_exists(pk)", {})
        return standing is None or text(standing, "token") == offer.token

    def match(self, offer: OpenOffer, proxy: WaitingProxy, *, now_ms: int) -> bool:
        """Give the offer to a proxy; False where its poll is over or has another, or its Sid had one lately."""
        record = offer.record
        values = {
            "poll_id": proxy.poll_id,
            "client_id": record.client_id,
            "sent_at": record.sent_at_ms,
            "method": record.method,
            "reply_to": offer.reply_to,
            "answers_until": offer.answers_until_ms,
            "profile": json.dumps(asdict(proxy.profile)),
            "expires_at": now_ms // 1000 + MATCH_KEPT_S,
        }
        standing = self._of_poll(proxy, values, over_ms=now_ms - SID_RESTS_MS)
        return standing is None or (
            text(standing, "poll_id") == proxy.poll_id
            and text(standing, "client_id") == record.client_id
            and number(standing, "sent_at") == record.sent_at_ms
        )

    def close(self, proxy: WaitingProxy) -> bool:
        """End a poll that was given nothing, and is given nothing from now on; False where it was given an offer."""
        values: dict[str, str | int] = {
            "poll_id": proxy.poll_id,
            "answers_until": 0,
            "expires_at": proxy.waits_until_ms // 1000 + MATCH_KEPT_S,
        }
        standing = self._of_poll(proxy, values, over_ms=proxy.polled_at_ms)
        return standing is None or text(standing, "poll_id") != proxy.poll_id or not number(standing, "answers_until")

    def _of_poll(self, proxy: WaitingProxy, values: dict[str, Any], *, over_ms: int) -> Item | None:
        """Write what became of a poll, once; what stands there where that can't be, and None where it is done."""
        is_free = "attribute_not_exists(answers_until) OR (answers_until < :over AND poll_id <> :poll_id)"
        return self._put(
            _match_key(proxy.sid) | attributes(values), is_free, {":over": over_ms, ":poll_id": proxy.poll_id}
        )

    def _put(self, item: dict[str, Any], condition: str, values: dict[str, str | int]) -> Item | None:
        given: dict[str, Any] = {"ExpressionAttributeValues": attributes(values)} if values else {}
        try:
            with calls("PutItem"):
                self.client.put_item(
                    TableName=self.table,
                    Item=item,
                    ConditionExpression=condition,
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                    **given,
                )
        except CallFailed as error:
            standing = standing_item(error)
            if standing is None:
                raise
            return standing
        return None

    def answer(self, sid: str, *, token: str, now_ms: int) -> Match | None:
        """Take the answer of the proxy with this Sid: once, and only in time. None where nobody waits for it."""
        match = self._match_of(sid, now_ms=now_ms)
        if match is None:
            return None
        answered: dict[str, str | int] = {
            "state": OfferState.ANSWERED,
            "ended_at": now_ms,
            "answered_by": token,
            "proxy_type": match.profile.type,
            "proxy_nat": match.profile.nat,
            "proxy_country": match.profile.country,
        }
        updated = self._end(match.record, answered, mine=" OR answered_by = :answered_by")
        return None if updated is None else replace(match, record=offer_record(updated))

    def end(self, offer: OfferRecord, state: OfferState, *, now_ms: int) -> bool:
        """Say how an offer ended that nobody answered; False where it has its end."""
        return self._end(offer, {"state": state, "ended_at": now_ms}) is not None

    def _end(self, offer: OfferRecord, values: dict[str, str | int], *, mine: str = "") -> Item | None:
        """Give an offer its end, once: the item then, and None where it has another, or has gone."""
        try:
            with calls("UpdateItem"):
                updated = self.client.update_item(
                    TableName=self.table,
                    Key=_offer_key(offer),
                    UpdateExpression="SET " + ", ".join(f"#{name} = :{name}" for name in values),
                    ConditionExpression=f"#state = :received{mine}",
                    ExpressionAttributeNames={f"#{name}": name for name in values},
                    ExpressionAttributeValues=attributes(
                        {":received": OfferState.RECEIVED} | {f":{name}": value for name, value in values.items()}
                    ),
                    ReturnValues="ALL_NEW",
                )
        except CallFailed as error:
            if error.code == CONDITION_FAILED:
                return None
            raise
        return updated["Attributes"]

    def _match_of(self, sid: str, *, now_ms: int) -> Match | None:
        """Read what may be answered now: most find it by a read at half the price."""
        for consistent in (False, True):
            with calls("GetItem"):
                found = self.client.get_item(TableName=self.table, Key=_match_key(sid), ConsistentRead=consistent)
            item = found.get("Item", {})
            if number(item, "answers_until") > now_ms:
                return _match(item)
        return None

    def sent_before(self, until_ms: int) -> Iterator[Sequence[OfferRecord]]:
        """Read all offers sent before, page by page, oldest first within a shard."""
        for shard in range(SHARDS):
            for page in query_pages(
                self.client,
                TableName=self.table,
                KeyConditionExpression="pk = :pk AND sk < :until",
                ExpressionAttributeValues=attributes(
                    {":pk": f"{OFFERS_PREFIX}{shard}", ":until": milliseconds(until_ms)}
                ),
            ):
                yield read_each(page, offer_record)

    def forget(self, offers: Sequence[OfferRecord]) -> None:
        """Delete them."""
        delete_all(self.client, self.table, [_offer_key(offer) for offer in offers])


def offer_record(item: Item) -> OfferRecord:
    """Read an offer's item. Raises ValueError for what is none."""
    sent_at, _, client_id = text(item, "sk").partition("#")
    state = text(item, "state")
    return OfferRecord(
        client_id=client_id,
        sent_at_ms=int(sent_at),
        method=OfferMethod(text(item, "method")),
        state=EARLIER_STATES.get(state) or OfferState(state),
        nat=Nat(text(item, "nat") or Nat.UNKNOWN),
        country=text(item, "country") or UNKNOWN_COUNTRY,
        trace=text(item, "trace") or None,
        token=text(item, "token"),
        shard=int(text(item, "pk").rpartition("#")[2]),
    )


def _match(item: Item) -> Match:
    record = OfferRecord(
        client_id=text(item, "client_id"), sent_at_ms=number(item, "sent_at"), method=OfferMethod(text(item, "method"))
    )
    return Match(
        record=record,
        profile=read_profile(item),
        reply_to=text(item, "reply_to"),
        answers_until_ms=number(item, "answers_until"),
    )


def _offer_key(offer: OfferRecord) -> dict[str, Any]:
    shard = shard_of(offer.client_id, SHARDS) if offer.shard is None else offer.shard
    return attributes({"pk": f"{OFFERS_PREFIX}{shard}", "sk": f"{milliseconds(offer.sent_at_ms)}#{offer.client_id}"})


def _match_key(sid: str) -> dict[str, Any]:
    return attributes({"pk": f"proxy#{sid}", "sk": "match"})
