"""A client: offers, and with the answer opens a data channel to the proxy that gave it."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from sluice.errors import Malformed
from sluice.peers.channels import Channel, ChannelLimits, Network, Peer
from sluice.peers.methods import Answered, Denied, Lost, RendezvousMethod, offer_message
from sluice.rendezvous.protocol.matching import Nat
from sluice.rendezvous.protocol.messages import DEFAULT_FINGERPRINT

OPEN_TIMEOUT_S = 10.0  # the real client's


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds from the moment the offer, with all its candidates, was handed to the method."""

    answered_s: float
    opened_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """An open channel. The peer is now the caller's to close: `async with connected.peer`."""

    peer: Peer
    channel: Channel
    timings: Timings


async def connect(
    method: RendezvousMethod,
    *,
    network: Network,
    nat: Nat = Nat.UNKNOWN,
    fingerprint: str = DEFAULT_FINGERPRINT,
    limits: ChannelLimits | None = None,
    open_timeout_s: float = OPEN_TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> Connected | Denied | Lost:
    """Make one attempt from start to end. Only `Connected` leaves something open. Raises what `method` raises."""
    peer = Peer(network, limits or ChannelLimits())
    async with contextlib.AsyncExitStack() as unless_connected:
        unless_connected.push_async_callback(peer.close)
        channel = peer.open_channel()
        message = offer_message(await peer.offer(), nat=nat, fingerprint=fingerprint)
        sent_at = clock()
        reply = await method(message)
        answered_at = clock()
        if not isinstance(reply, Answered):
            return reply
        try:
            await peer.accept(reply.answer)
            async with asyncio.timeout(open_timeout_s):
                if not await channel.opened():
                    return Lost("the connection failed before the data channel was open")
        except Malformed as error:
            return Lost(f"unusable answer: {error}")
        except TimeoutError:
            return Lost(f"the data channel didn't open in {open_timeout_s:g} s")
        unless_connected.pop_all()
    timings = Timings(answered_s=answered_at - sent_at, opened_s=clock() - sent_at)
    return Connected(peer=peer, channel=channel, timings=timings)
