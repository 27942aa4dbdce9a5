"""Stores offers, held polls and their matches in DynamoDB.

    pk                      sk                          item
    offers#<shard>          <sent_at_ms>#<client_id>    an offer, until its queue is swept
    proxy#<sid>             match                       the offer given to a proxy, or the end of its poll
    polls#<pool>#<shard>    <address>#<sid>             a proxy whose poll is held open; the address is a hash

Held polls, which cost two writes each, are in a table without point-in-time recovery, offers and matches in a table
with it. The number of shards of polls grows with the number of offers. No transactions are needed: one conditional
write to the proxy's item matches an offer, and one to the offer's item accepts the answer. A DynamoDB partition takes
1,000 writes per second and an offer needs three, so offers are spread over shards. Every method may raise `CallFailed`.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import msgspec
from aws_lambda_powertools.logging import Logger
from msgspec.structs import asdict, replace

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.clients import calls
from sluice.aws.items import (
    Item,
    attributes,
    delete_all,
    delete_if,
    get_item,
    number,
    query_pages,
    text,
    update_if,
    write_if,
)
from sluice.rendezvous.counts.stream import OFFERS_PREFIX
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.ends import BY_STATE, OPEN, End
from sluice.rendezvous.protocol.matching import (
    ANSWER_QUEUE_AGE_MS,
    Match,
    Nat,
    OfferMethod,
    OfferRecord,
    OpenOffer,
    Pool,
    Profile,
    WaitingProxy,
    choose_shard,
)

SHARDS = 8
MATCH_KEPT_S = 60 * 60  # Matches are kept for longer than any answer takes.
# An answer names only its proxy's Sid, so a Sid gets no second offer while an answer to the first may still arrive.
SID_COOLDOWN_MS = 10_000
KEPT_S = 10 * 60  # DynamoDB deletes the items of crashed functions after this time.
DEAD_AFTER_MS = 60_000  # If its function crashed, a poll's item is deleted this long after the poll's end.
ADDRESS_DIGITS = 8  # A sort key has this many digits of an address's hash, enough to tell a pool's addresses apart.

T = TypeVar("T")

logger = Logger()


class DynamoOfferStore(msgspec.Struct, frozen=True):
    """Stores the offers of the last two minutes, and their matches with proxies, in one table.

    Offers have no expiry: the sweep deletes an offer's answer queue, then its item. Writes may be retried: a repeated
    write returns the result of the first one.
    """

    client: DynamoDBClient
    table: str

    def record(self, offer: OfferRecord) -> bool:
        """Store a received offer. Returns False if another delivery of the same message was stored first."""
        values: dict[str, str | int] = {
            "state": offer.state,
            "method": offer.method,
            "nat": offer.nat,
            "country": offer.country,
            "trace": offer.trace or "",
            "token": offer.token,
            "waiting_shard": offer.waiting_shard,
            "receipt_handle": offer.receipt_handle,
        }
        item = _offer_key(offer) | attributes(values)
        standing = write_if(self.client, self.table, item, "attribute_not_exists(pk)")
        return standing is None or text(standing, "token") == offer.token

    def read(self, offer: OfferRecord, *, consistent: bool) -> OfferRecord | None:
        """Read a stored offer. Returns None if it isn't stored; without `consistent`, a new offer may be missed."""
        item = get_item(self.client, self.table, _offer_key(offer), consistent=consistent)
        return next(iter(parse_items([item] if item else [], parse_offer_record)), None)

    def match(self, offer: OpenOffer, proxy: WaitingProxy, *, now_ms: int, has_waited: bool = False) -> bool:
        """Give the offer to a proxy.

        Returns False if the poll is over or has an offer, or if its Sid recently had an offer. `has_waited`: the offer
        was taken from the waiting offers.
        """
        record = offer.record
        values = {
            "poll_id": proxy.poll_id,
            **offer.for_answer,
            "has_waited": int(has_waited),
            "profile": json.dumps(asdict(proxy.profile)),
            "expires_at": now_ms // 1000 + MATCH_KEPT_S,
        }
        standing = self._close_poll(proxy, values, over_ms=now_ms - SID_COOLDOWN_MS)
        return standing is None or (
            text(standing, "poll_id") == proxy.poll_id
            and text(standing, "client_id") == record.client_id
            and number(standing, "sent_at") == record.sent_at_ms
        )

    def close_poll(self, proxy: WaitingProxy) -> bool:
        """End a poll without an offer, so that no broker gives it one. Returns False if it was given one before."""
        values: dict[str, str | int] = {
            "poll_id": proxy.poll_id,
            "answers_until": 0,
            "expires_at": proxy.waits_until_ms // 1000 + MATCH_KEPT_S,
        }
        standing = self._close_poll(proxy, values, over_ms=proxy.polled_at_ms)
        return standing is None or text(standing, "poll_id") != proxy.poll_id or not number(standing, "answers_until")

    def _close_poll(self, proxy: WaitingProxy, values: dict[str, Any], *, over_ms: int) -> Item | None:
        """Store a poll's outcome. Returns None, or the outcome that is already stored and is kept.

        An earlier poll's outcome is replaced if the deadline for its answer was before `over_ms`.
        """
        is_free = "attribute_not_exists(answers_until) OR (answers_until < :over AND poll_id <> :poll_id)"
        item = _match_key(proxy.sid) | attributes(values)
        return write_if(self.client, self.table, item, is_free, {":over": over_ms, ":poll_id": proxy.poll_id})

    def answer(self, sid: str, *, token: str, now_ms: int, match: Match | None = None) -> Match | None:
        """Accept the answer of the proxy with this Sid, once and before its deadline.

        Returns None if no client waits for it. `token` identifies the answer, so that a retried call also succeeds. If
        `match` is None, the Sid's match is read. A Sid has no second match before the deadline of the first one's
        answer.
        """
        if match is None or match.answers_until_ms <= now_ms:
            match = self._read_match(sid, now_ms=now_ms)
        if match is None:
            return None
        answered: dict[str, str | int] = {
            "state": End.OFFER_MATCHED.state,
            "ended_at": now_ms,
            "answered_by": token,
            "proxy_type": match.profile.type,
            "proxy_nat": match.profile.nat,
            "proxy_country": match.profile.country,
        }
        updated = self._store_end(match.record, answered, or_condition=" OR answered_by = :answered_by")
        return None if updated is None else replace(match, record=parse_offer_record(updated))

    def _read_match(self, sid: str, *, now_ms: int) -> Match | None:
        """Read the match of a Sid whose answer is still accepted. Returns None if the Sid has no such match."""
        # The eventually consistent read, at half the cost, finds most matches.
        for consistent in (False, True):
            item = get_item(self.client, self.table, _match_key(sid), consistent=consistent)
            if number(item, "answers_until") > now_ms:
                texts = {name: text(item, name) for name in ("client_id", "method", "reply_to")}
                fields = texts | {name: number(item, name) for name in ("sent_at", "answers_until")}
                return Match.parse(fields, read_profile(item), has_waited=bool(number(item, "has_waited")))
        return None

    def end(self, offer: OfferRecord, end: End, *, now_ms: int) -> bool:
        """Store the end of an offer that no proxy answered. Returns False if the offer already has another end."""
        return self._store_end(offer, {"state": end.state, "ended_at": now_ms}) is not None

    def _store_end(self, offer: OfferRecord, values: dict[str, str | int], *, or_condition: str = "") -> Item | None:
        """Store an offer's end, once. Returns the updated item, or None if the offer has another end or was deleted."""
        return update_if(
            self.client,
            TableName=self.table,
            Key=_offer_key(offer),
            UpdateExpression="SET " + ", ".join(f"#{name} = :{name}" for name in values),
            ConditionExpression=f"#state = :received{or_condition}",
            ExpressionAttributeNames={f"#{name}": name for name in values},
            ExpressionAttributeValues=attributes(
                {":received": OPEN} | {f":{name}": value for name, value in values.items()}
            ),
        )

    def read_sent_before(self, until_ms: int) -> Iterator[Sequence[OfferRecord]]:
        """Yield all offers that were sent before this time, in pages, ordered by time within each shard."""
        until = {":until": format_ms(until_ms)}
        for shard in range(SHARDS):
            for page in query_pages(self.client, self.table, f"{OFFERS_PREFIX}{shard}", "sk < :until", until):
                yield parse_items(page, parse_offer_record)

    def count_recent_states(self, *, now_ms: int) -> Mapping[str, int]:
        """Count the offers of the last two minutes by state."""
        pages = self.read_sent_before(now_ms + 1)
        since_ms = now_ms - ANSWER_QUEUE_AGE_MS  # Offers that were sent before this time are being swept.
        states = Counter(offer.state for page in pages for offer in page if offer.sent_at_ms > since_ms)
        return {state: states[state] for state in BY_STATE}

    def delete(self, offers: Sequence[OfferRecord]) -> None:
        """Delete the items of these offers."""
        delete_all(self.client, self.table, [_offer_key(offer) for offer in offers])


class DynamoProxyPools(msgspec.Struct, frozen=True):
    """Stores the proxies whose polls are held open, in one table. `random` returns a number in [0, 1)."""

    client: DynamoDBClient
    table: str
    random: Callable[[], float]
    _large_partitions: set[str] = msgspec.field(default_factory=set)  # partitions with more items than the limit

    def add_proxy(self, proxy: WaitingProxy) -> None:
        """Add a proxy to its pool. An earlier poll with the same Sid is replaced."""
        values: dict[str, str | int] = {
            "poll_id": proxy.poll_id,
            "clients": proxy.clients,
            "polled_at": proxy.polled_at_ms,
            "waits_until": proxy.waits_until_ms,
            "mailbox": proxy.mailbox,
            "profile": json.dumps(asdict(proxy.profile)),
            "expires_at": (proxy.waits_until_ms + DEAD_AFTER_MS) // 1000,
        }
        with calls("PutItem"):
            self.client.put_item(TableName=self.table, Item=_proxy_key(proxy) | attributes(values))

    def remove_proxy(self, proxy: WaitingProxy) -> None:
        """Remove a proxy from its pool."""
        delete_if(self.client, self.table, _proxy_key(proxy), "poll_id = :poll_id", {":poll_id": proxy.poll_id})

    def read_waiting(
        self, pool: Pool, *, now_ms: int, limit: int, shards: int, consistent: bool = True
    ) -> Sequence[WaitingProxy]:
        """Read waiting proxies in random order, until at least `limit` proxies are found.

        An eventually consistent read may miss proxies that have just entered; a `consistent` read costs twice as much.
        Items of polls whose function crashed are deleted when they are read.
        """
        first = int(self.random() * shards)
        proxies_found: list[WaitingProxy] = []
        for shard in chain(range(first, shards), range(first)):
            for page in self._iterate_partition(f"polls#{pool}#{shard}", limit=limit, consistent=consistent):
                dead = [item for item in page if number(item, "waits_until") < now_ms - DEAD_AFTER_MS]
                delete_all(self.client, self.table, [{"pk": item["pk"], "sk": item["sk"]} for item in dead])
                proxies = parse_items(page, parse_waiting_proxy)
                proxies_found += [proxy for proxy in proxies if proxy.waits_until_ms > now_ms]
                if len(proxies_found) >= limit:
                    return proxies_found
        return proxies_found

    def _iterate_partition(self, partition: str, *, limit: int, consistent: bool) -> Iterator[Sequence[Item]]:
        """Read a small partition in one page, a large one from a random position to its end, then from its start."""
        ask = partial(query_pages, self.client, self.table, partition, ConsistentRead=consistent, Limit=limit)
        if partition not in self._large_partitions:
            page = next(ask())
            if len(page) < limit:
                yield page
                return
        self._large_partitions.add(partition)
        start = f"{int(self.random() * 16**ADDRESS_DIGITS):0{ADDRESS_DIGITS}x}"
        for condition in ("sk > :start", "sk <= :start"):
            yield from ask(condition, {":start": start})
        self._large_partitions.discard(partition)  # With more items, the caller would have stopped reading.

    def read_profiles(self, pool: Pool, *, now_ms: int, shards: int) -> Sequence[Profile]:
        """Read the profiles of a pool's waiting proxies, with eventually consistent reads."""
        live_filter: dict[str, Any] = {"values": {":now": now_ms}, "FilterExpression": "waits_until > :now"}
        return [
            proxy.profile
            for shard in range(shards)
            for page in query_pages(self.client, self.table, f"polls#{pool}#{shard}", **live_filter)
            for proxy in parse_items(page, parse_waiting_proxy)
        ]

    def count(self, *, now_ms: int, shards: int) -> Mapping[Pool, int]:
        """Count the waiting proxies of each pool."""
        return {pool: len(self.read_profiles(pool, now_ms=now_ms, shards=shards)) for pool in Pool}


def parse_offer_record(item: Item) -> OfferRecord:
    """Parse the DynamoDB item of an offer. Raises KeyError or ValueError for any other item."""
    return replace(
        parse_received_offer(item),
        end=BY_STATE[text(item, "state")],
        token=text(item, "token"),
        shard=int(text(item, "pk").rpartition("#")[2]),
        waiting_shard=number(item, "waiting_shard"),
        receipt_handle=text(item, "receipt_handle"),
    )


def parse_received_offer(item: Item) -> OfferRecord:
    """Parse the fields that an offer's item has in both tables. Raises ValueError for any other item."""
    sent_at, _, client_id = text(item, "sk").partition("#")
    return OfferRecord(
        client_id=client_id,
        sent_at_ms=int(sent_at),
        method=OfferMethod(text(item, "method")),
        nat=Nat(text(item, "nat") or Nat.UNKNOWN),
        country=text(item, "country") or UNKNOWN_COUNTRY,
        trace=text(item, "trace") or None,
    )


def _offer_key(offer: OfferRecord) -> dict[str, Any]:
    shard = choose_shard(offer.client_id, SHARDS) if offer.shard is None else offer.shard
    return attributes({"pk": f"{OFFERS_PREFIX}{shard}", "sk": f"{format_ms(offer.sent_at_ms)}#{offer.client_id}"})


def _match_key(sid: str) -> dict[str, Any]:
    return attributes({"pk": f"proxy#{sid}", "sk": "match"})


def parse_waiting_proxy(item: Item) -> WaitingProxy:
    """Parse the DynamoDB item of a waiting proxy. Raises KeyError, ValueError or TypeError for any other item."""
    _, pool, shard = item["pk"]["S"].split("#")
    return WaitingProxy(
        poll_id=item["poll_id"]["S"],
        sid=item["sk"]["S"].partition("#")[2],
        pool=Pool(pool),
        clients=number(item, "clients"),
        polled_at_ms=number(item, "polled_at"),
        mailbox=item["mailbox"]["S"],
        profile=read_profile(item),
        shard=int(shard),
    )


def _proxy_key(proxy: WaitingProxy) -> dict[str, Any]:
    address = (proxy.profile.address or "")[:ADDRESS_DIGITS]
    return attributes({"pk": f"polls#{proxy.pool}#{proxy.shard}", "sk": f"{address}#{proxy.sid}"})


def parse_items(items: Iterable[Item], read: Callable[[Item], T]) -> list[T]:
    """Parse items with `read`. Invalid items, for example of a newer version, are logged and skipped."""
    values = []
    for item in items:
        try:
            values.append(read(item))
        except (KeyError, ValueError, TypeError) as fault:
            logger.warning("ItemNotRead", pk=text(item, "pk"), reason=repr(fault))
    return values


def read_profile(item: Item) -> Profile:
    """Parse the proxy's profile in an item. Raises KeyError, ValueError or TypeError for any other item."""
    profile = json.loads(item["profile"]["S"])
    return Profile(**profile | {"nat": Nat(profile["nat"])})


def format_ms(at_ms: int) -> str:
    """Write a time in milliseconds with leading zeros, so that sort keys are ordered by time."""
    return f"{max(at_ms, 0):013d}"
