"""Stores offers that wait for a poll, and the names of mailboxes, in DynamoDB.

    pk                        sk                          item
    waiting#<pool>#<shard>    <sent_at_ms>#<client_id>    an offer whose first choice is this pool
    mailboxes                 <created_at_ms>#<name>      a mailbox

Waiting offers contain their clients' addresses, so they are in a table without point-in-time recovery and are deleted
within minutes. The number of shards grows with the number of offers. An offer costs two write units per kilobyte.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.clients import calls
from sluice.aws.items import Item, attributes, delete_all, delete_if, number, query_pages, scan_keys, text, write_all
from sluice.aws.rendezvous.offers import KEPT_S, format_ms, parse_items, parse_received_offer
from sluice.rendezvous.protocol.matching import PATIENCE_MS, OpenOffer, Pool, list_pools_for_client

WAITING, MAILBOXES = "waiting", "mailboxes"
EXPIRED = "expires_at < :now"

# A waiting offer should fit in one write unit, a kilobyte. Session descriptions have many words in common, so zlib gets
# these as a preset dictionary, in the form that browsers, pion and aiortc write them for one data channel. Words at the
# dictionary's end take the fewest bits. Stored items don't name their dictionary: if you change the dictionary, keep
# the old one too, to read offers that wait.
_DICTIONARY = (
    rb" raddr 0.0.0.0 rport relay prflx tcptype active passive a=max-message-size:1073741823"
    rb" a=max-message-size:65536 2122260223 1686052607 2130706431 1694498815 network-id 1 network-cost 999"
    rb"\r\na=rtcp-mux\r\na=end-of-candidates\r\na=candidate:1 2 udp  typ srflx raddr  typ host generation 0"
    rb"\r\na=candidate:1 1 udp ABCDEF0123456789:"
    rb'{"type":"offer","sdp":"v=0\r\no=- IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0'
    rb"\r\na=extmap-allow-mixed\r\na=msid-semantic:WMS *\r\nm=application 9 UDP/DTLS/SCTP webrtc-datachannel"
    rb"\r\nc=IN IP4 0.0.0.0\r\na=ice-ufrag:\r\na=ice-pwd:\r\na=ice-options:trickle\r\na=fingerprint:sha-256 "
    rb'\r\na=setup:actpass\r\na=mid:0\r\na=sendrecv\r\na=sctp-port:5000\r\na=max-message-size:262144\r\n"}'
)


class DynamoWaitingOffers(msgspec.Struct, frozen=True):
    """Stores the offers that no proxy has yet, in one table. Every method may raise `CallFailed`."""

    client: DynamoDBClient
    table: str

    def add(self, offers: Sequence[OpenOffer]) -> None:
        """Queue the offers for the next polls."""
        write_all(self.client, self.table, [_build_item(offer) for offer in offers])

    def read_oldest(
        self, pool: Pool, *, now_ms: int, limit: int, shards: int, consistent: bool = False
    ) -> Sequence[OpenOffer]:
        """List the oldest offers that a proxy of this pool can serve and still answer in time, in order.

        Offers that the fewest pools can serve are listed first; other offers are listed only if no such offer waits.
        """
        pools, read = tuple(Pool), partial(self._read_partition, now_ms=now_ms, limit=limit, consistent=consistent)
        for first in pools[pools.index(pool) :]:
            offers_found = [offer for shard in range(shards) for offer in read(f"{WAITING}#{first}#{shard}")]
            if offers_found:
                return sorted(offers_found, key=lambda offer: (offer.record.sent_at_ms, offer.record.client_id))[:limit]
        return []

    def _read_partition(self, partition: str, *, now_ms: int, limit: int, consistent: bool) -> Sequence[OpenOffer]:
        """Read at least `limit` offers that still wait, or all. Continues behind offers whose deadline is over."""
        offers_found: list[OpenOffer] = []
        after = {":since": format_ms(now_ms - PATIENCE_MS)}  # Every offer waits for less than this time.
        for page in query_pages(
            self.client, self.table, partition, "sk > :since", after, ConsistentRead=consistent, Limit=limit
        ):
            offers_found += [offer for offer in parse_items(page, parse_open_offer) if offer.waits_until_ms > now_ms]
            if len(offers_found) >= limit:
                break
        return offers_found

    def take(self, offer: OpenOffer) -> bool:
        """Take a waiting offer. Returns True to only one caller."""
        return delete_if(self.client, self.table, _offer_key(offer), "attribute_exists(pk)")

    def list_untaken(self, *, until_ms: int, shards: int) -> Iterator[Mapping[tuple[str, int], Item]]:
        """Yield the item keys of offers sent before `until_ms` that no proxy took, by their records' keys."""
        until = {":until": format_ms(until_ms)}
        for pool in Pool:
            for shard in range(shards):
                for page in query_pages(self.client, self.table, f"{WAITING}#{pool}#{shard}", "sk < :until", until):
                    yield dict(parse_items(page, parse_untaken_offer))

    def delete(self, keys: Sequence[Item]) -> None:
        """Delete the offers' items with these keys."""
        delete_all(self.client, self.table, keys)

    def read_expired(self, now_ms: int) -> Iterator[Sequence[Item]]:
        """Yield the keys of all expired items, in pages. DynamoDB itself may take days to delete expired items."""
        return scan_keys(self.client, self.table, EXPIRED, {":now": now_ms // 1000})

    def delete_expired(self, key: Item, *, now_ms: int) -> bool:
        """Delete an expired item. Returns False if the item was written again in the meantime."""
        return delete_if(self.client, self.table, key, EXPIRED, {":now": now_ms // 1000})


class DynamoMailboxStore(msgspec.Struct, frozen=True):
    """Stores the mailboxes, by creation time, in one table. Every method may raise `CallFailed`.

    A mailbox is stored before its queue is created, so that the sweeper finds every queue. Items don't expire: only the
    sweeper deletes them.
    """

    client: DynamoDBClient
    table: str

    def record(self, name: str, *, created_at_ms: int) -> None:
        """Store the name of a mailbox that is about to be created."""
        with calls("PutItem"):
            self.client.put_item(TableName=self.table, Item=_mailbox_key(name, created_at_ms))

    def read_created_before(self, until_ms: int) -> Iterator[Sequence[tuple[str, int]]]:
        """Yield names and creation times of mailboxes created before this time, in pages, the oldest first."""
        until = {":until": format_ms(until_ms)}
        for page in query_pages(self.client, self.table, MAILBOXES, "sk < :until", until):
            keys = [text(item, "sk").partition("#") for item in page]
            yield [(name, int(created_at_ms)) for created_at_ms, _, name in keys]

    def delete(self, mailboxes: Sequence[tuple[str, int]]) -> None:
        """Delete the items of these mailboxes from the table."""
        delete_all(self.client, self.table, [_mailbox_key(*mailbox) for mailbox in mailboxes])


def _build_item(offer: OpenOffer) -> Item:
    record = offer.record
    values: dict[str, str | int] = {
        "method": record.method,
        "nat": record.nat,
        "country": record.country,
        "trace": record.trace or "",
        "relay": offer.relay,
        "reply_to": offer.reply_to,
        "answers_until": offer.answers_until_ms,
        "expires_at": record.sent_at_ms // 1000 + KEPT_S,
    }
    return _offer_key(offer) | attributes(values) | {"offer": {"B": compress_description(offer.offer)}}


def parse_open_offer(item: Item) -> OpenOffer:
    """Parse the item of a waiting offer. Raises KeyError, ValueError or TypeError for any other item."""
    return OpenOffer(
        record=parse_received_offer(item),
        offer=decompress_description(item["offer"]["B"]),
        relay=item["relay"]["S"],
        reply_to=item["reply_to"]["S"],
        answers_until_ms=number(item, "answers_until"),
        shard=int(item["pk"]["S"].rpartition("#")[2]),
    )


def parse_untaken_offer(item: Item) -> tuple[tuple[str, int], Item]:
    """Parse a waiting offer's key from its item, and the key of its record. Raises ValueError for any other item."""
    sent_at, _, client_id = text(item, "sk").partition("#")
    return (client_id, int(sent_at)), {"pk": item["pk"], "sk": item["sk"]}


def _offer_key(offer: OpenOffer) -> dict[str, Any]:
    record = offer.record
    partition = f"{WAITING}#{list_pools_for_client(record.nat)[0]}#{offer.shard}"
    return attributes({"pk": partition, "sk": f"{format_ms(record.sent_at_ms)}#{record.client_id}"})


def _mailbox_key(name: str, created_at_ms: int) -> dict[str, Any]:
    return attributes({"pk": MAILBOXES, "sk": f"{format_ms(created_at_ms)}#{name}"})


def compress_description(description: str) -> bytes:
    """Compress a session description, with the preset dictionary."""
    packing = zlib.compressobj(zdict=_DICTIONARY)
    return packing.compress(description.encode()) + packing.flush()


def decompress_description(data: bytes) -> str:
    """Decompress a session description. Raises ValueError for any other format."""
    try:
        return zlib.decompressobj(zdict=_DICTIONARY).decompress(data).decode()
    except zlib.error as fault:
        raise ValueError(str(fault)) from None
