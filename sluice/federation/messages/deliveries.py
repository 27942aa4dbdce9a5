"""One message at an exchange, and one on a bridge: what is sent where, or why it isn't. Pure.

`publish` is the exchange function's decision, `forward` the bridge function's.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from sluice.errors import Malformed, NotPermitted, WentAround
from sluice.federation.links.peers import Peer, marked
from sluice.federation.matching.bindings import Destination
from sluice.federation.matching.indexes import MAX_KEY_CHARACTERS, Publication
from sluice.federation.matching.replicas import RoutingTable
from sluice.federation.matching.tracing import (
    MAX_TURNS,
    Crossing,
    DropReason,
    crossed,
    held_back,
    share,
    turned_away,
)
from sluice.federation.matching.typed_values import headers_of
from sluice.federation.messages.metadata import (
    ATTRIBUTE,
    EXCHANGE_ATTRIBUTE,
    KEY_ATTRIBUTE,
    Metadata,
    message_id_of,
    open_attributes,
    seal,
)
from sluice.message import MAX_ATTRIBUTES, Attributes, Message, Outgoing

HASH_CHARACTERS = 16  # of what tells a message's copies apart


class Receipt(Struct, frozen=True, kw_only=True):
    """A message as it was received: at which site, and when.

    `ulid` is for a message without an id. It must be the same each time that the message is received, as `ulid_of` is.
    """

    message: Message
    site: str
    ulid: str
    now_ms: int


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """What goes to one queue."""

    destination: Destination
    outgoing: Outgoing


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A message that isn't sent on: to the bridge queue `queue`, or to no queue at all where that is None."""

    reason: DropReason
    message_id: str
    queue: str | None = None


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a message at an exchange. There is at least one copy or one drop."""

    message_id: str
    copies: tuple[Copy, ...] = ()
    drops: tuple[Drop, ...] = ()


def publish(
    receipt: Receipt,
    *,
    table: RoutingTable,
    trusted: bool,
    senders: Sequence[Peer] | None = None,
    exchange: str | None = None,
) -> Published:
    """Decide what the exchange does with a message; where `exchange` is None, the one that the message names.

    `senders` are the peers one of which it came from, over a link. What they say is believed, and what is said where a
    site chooses to trust its publishers. Otherwise the trace, the id and the times that a message claims are forgotten,
    as if it had none.

    Raises `SenderFault` for a message that can never succeed: its metadata can't be read, its key is too long, it is
    too large with metadata, the exchange isn't there, or isn't one that the peer may push to.
    """
    opened = open_attributes(receipt.message.attributes)
    claimed = opened.metadata or Metadata()
    if senders is not None:
        claimed = replace(claimed, trace=marked(claimed.trace, senders))
    elif not trusted:
        claimed = Metadata(exchange=claimed.exchange, key=claimed.key, ttl_ms=claimed.ttl_ms, headers=claimed.headers)
    metadata, message_id = _stamped(claimed, opened.attributes, receipt)
    named = exchange or claimed.exchange or _text(opened.attributes, EXCHANGE_ATTRIBUTE)
    if not named:
        raise Malformed(f"names no exchange: neither {ATTRIBUTE} nor an attribute `{EXCHANGE_ATTRIBUTE}` does")
    if senders and not any(each.may_push(named) for each in senders):
        raise NotPermitted(senders[0].push_refusal(named))
    reason = turned_away(metadata.trace, site=receipt.site) or metadata.expired(receipt.now_ms)
    if reason is not None:
        return Published(message_id=message_id, drops=(Drop(reason=reason, message_id=message_id),))
    headers = headers_of(opened.attributes, metadata.headers)
    destinations = table.route(Publication(exchange=named, key=metadata.key or "", headers=headers))
    if not destinations:
        return Published(message_id=message_id, drops=(Drop(reason=DropReason.UNROUTABLE, message_id=message_id),))
    return _shared_out(receipt, opened.attributes, replace(metadata, exchange=named), destinations)


def _shared_out(
    receipt: Receipt, attributes: Attributes, metadata: Metadata, destinations: Sequence[Destination]
) -> Published:
    """Give each destination its copy: those on dynamic bridges share out whom the message is for."""
    message, message_id = receipt.message, metadata.message_id or ""
    is_addressed, is_for_here = metadata.to is not None, metadata.to is None or receipt.site in metadata.to
    unaddressed = replace(metadata, to=None, turns=0)
    sealed = seal(message.body, attributes, unaddressed)
    # SQS's ten are the user's again where the message ends its way: a plain consumer knows nothing of `x-qpid`.
    fills_up = len(attributes) == MAX_ATTRIBUTES and not metadata.headers
    at_the_end = attributes if fills_up else sealed
    copies: list[Copy] = []
    drops: list[Drop] = []
    for destination in destinations:
        crossing, held, known_as = destination.crossing, None, message_id
        if crossing is not None and crossing.origins is not UNSET:
            addressed = replace(metadata, to=share(metadata.trace, metadata.to, crossing.origins))
            if is_addressed and not addressed.to:
                continue  # other copies are for those
            held = held_back(metadata.trace, crossing, addressed=is_addressed)
            held = held or (None if addressed.to else DropReason.LOOP)
            carried, known_as = seal(message.body, attributes, addressed), _known_as(addressed)
        elif is_for_here:
            if crossing is not None:
                held, known_as = held_back(metadata.trace, crossing), _known_as(unaddressed)
            carried = sealed if destination.goes_on else at_the_end
        else:
            continue
        if held is not None:
            drops.append(Drop(reason=held, message_id=message_id, queue=destination.queue))
            continue
        outgoing = _outgoing(message, carried, message_id, fifo=destination.is_fifo, known_as=known_as)
        copies.append(Copy(destination=destination, outgoing=outgoing))
    if not (copies or drops):
        drops.append(Drop(reason=DropReason.UNROUTABLE, message_id=message_id))
    return Published(message_id=message_id, copies=tuple(copies), drops=tuple(drops))


def forward(
    receipt: Receipt,
    *,
    crossing: Crossing,
    dest: str,
    dest_key: str | None = None,
    fifo: bool,
    lets_over: Callable[[Message], bool] | None = None,
) -> Outgoing | Drop:
    """Decide what a bridge sends to its peer's ingress, FIFO or not, for the exchange `dest`; or why it sends nothing.

    Where `dest_key` is None it keeps its key. `lets_over` is asked last, with the publisher's own attributes,
    and what it raises is raised.

    What the message claims is always believed: a trace that were forgotten here would let opposite queue routes pass a
    message on for ever, while a false one only stops the message that has it. Raises `SenderFault`.
    """
    opened = open_attributes(receipt.message.attributes)
    metadata, message_id = _stamped(opened.metadata or Metadata(), opened.attributes, receipt)
    if crossing.origins is UNSET:  # what isn't put there by an exchange has no address to be believed
        metadata = replace(metadata, to=None, turns=0)
    is_addressed = metadata.to is not None
    reason = held_back(metadata.trace, crossing, addressed=is_addressed) or metadata.expired(receipt.now_ms)
    if reason is None and lets_over is not None:
        published = msgspec.structs.replace(receipt.message, attributes=opened.attributes)
        reason = None if lets_over(published) else DropReason.FILTERED
    if reason is not None:
        return Drop(reason=reason, message_id=message_id)
    if metadata.turns >= MAX_TURNS:
        raise WentAround(f"has crossed {metadata.turns} bridges on its way to {', '.join(sorted(metadata.to or ()))}")
    gone = replace(
        metadata,
        exchange=dest,
        key=metadata.key if dest_key is None else dest_key,
        trace=crossed(metadata.trace, crossing, addressed=is_addressed),
        ttl_ms=metadata.ttl_left_ms(receipt.now_ms),
        stamped_at_ms=receipt.now_ms,
        turns=metadata.turns + is_addressed,
    )
    attributes = seal(receipt.message.body, opened.attributes, gone)
    return _outgoing(receipt.message, attributes, message_id, fifo=fifo, known_as=_known_as(gone))


def _known_as(metadata: Metadata) -> str:
    """Give the id by which FIFO queues know a copy on its way from site to site.

    By several ways a message comes to one exchange once, and to each of several exchanges; by each of several keys that
    routes give it, too. Copies for different sites are none of each other's, and one that has come back isn't the one
    that went.
    """
    said = f"{metadata.exchange}\0{metadata.key}"
    if metadata.to is not None:
        said = f"{said} {sorted(metadata.to)} {metadata.turns}"
    return f"{metadata.message_id}.{mark_of(said)}"


@lru_cache  # a route has one destination, and few addresses
def mark_of(said: str) -> str:
    """Hash where a copy goes."""
    return hashlib.sha256(said.encode()).hexdigest()[:HASH_CHARACTERS]


def _stamped(believed: Metadata, attributes: Attributes, receipt: Receipt) -> tuple[Metadata, str]:
    """Complete the metadata, and give the message's id. What an exchange has sent is so already."""
    if believed.message_id is not None and None not in {believed.key, believed.published_at_ms, believed.stamped_at_ms}:
        return believed, believed.message_id
    message_id = believed.message_id or message_id_of(receipt.site, receipt.ulid)
    sent_at_ms = receipt.message.sent_at_ms
    first_seen_ms = receipt.now_ms if sent_at_ms is None else sent_at_ms
    published_at_ms = first_seen_ms if believed.published_at_ms is None else believed.published_at_ms
    complete = replace(
        believed,
        key=_text(attributes, KEY_ATTRIBUTE) if believed.key is None else believed.key,
        message_id=message_id,
        published_at_ms=published_at_ms,
        stamped_at_ms=published_at_ms if believed.stamped_at_ms is None else believed.stamped_at_ms,
    )
    return complete, message_id


def _text(attributes: Attributes, name: str) -> str:
    """Read what a producer that knows nothing of `x-qpid` says in an attribute of its own; "" where there is none."""
    attribute = attributes.get(name)
    if attribute is None:
        return ""
    if attribute.text is None:
        raise Malformed(f"{name} is no text")
    if len(attribute.text) > MAX_KEY_CHARACTERS:
        raise Malformed(f"{name} of {len(attribute.text)} characters, more than {MAX_KEY_CHARACTERS}")
    return attribute.text


def _outgoing(message: Message, attributes: Attributes, message_id: str, *, fifo: bool, known_as: str) -> Outgoing:
    # From a standard queue no order was promised: each message is a group of its own, and none waits for another.
    return Outgoing(
        body=message.body,
        attributes=attributes,
        group_id=message.group_id or (message_id if fifo else None),
        deduplication_id=known_as if fifo else None,
        trace_header=message.trace_header,
    )
