"""Clients: each sends an offer, opens a data channel to the answering proxy, and checks that its bytes are echoed."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sluice.errors import Malformed
from sluice.peers.channels import Channel, ChannelLimits, Network, Peer
from sluice.peers.methods import Answered, Denied, NoReply, RendezvousMethod, build_offer_message
from sluice.rendezvous.protocol.matching import Nat
from sluice.rendezvous.protocol.messages import DEFAULT_FINGERPRINT

OPEN_TIMEOUT_S = 10.0  # Snowflake's client has the same limit.
ECHO_TIMEOUT_S = 30.0
RETRY_S = 10.0  # A client waits for this time between a failed offer and the next offer, as in Snowflake.


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """An open channel. The caller must close the peer: `async with connected.peer`.

    `answered_s` and `opened_s` are seconds since the complete offer was passed to the rendezvous method.
    """

    peer: Peer
    channel: Channel
    answered_s: float
    opened_s: float


async def connect(
    method: RendezvousMethod,
    *,
    network: Network,
    nat: Nat = Nat.UNKNOWN,
    fingerprint: str = DEFAULT_FINGERPRINT,
    limits: ChannelLimits | None = None,
    open_timeout_s: float = OPEN_TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> Connected | Denied | NoReply:
    """Try once to connect to a proxy. If the result is `Connected`, the peer stays open. Raises `method`'s errors."""
    peer = Peer(network, limits or ChannelLimits())
    async with contextlib.AsyncExitStack() as unless_connected:
        unless_connected.push_async_callback(peer.close)
        channel = peer.open_channel()
        message = build_offer_message(await peer.create_offer(), nat=nat, fingerprint=fingerprint)
        sent_at = clock()
        reply = await method(message)
        answered_at = clock()
        if not isinstance(reply, Answered):
            return reply
        try:
            await peer.accept_answer(reply.answer)
            async with asyncio.timeout(open_timeout_s):
                if not await channel.wait_until_open():
                    return NoReply("the connection failed before the data channel was open")
        except Malformed as error:
            return NoReply(f"unusable answer: {error}")
        except TimeoutError:
            return NoReply(f"the data channel didn't open in {open_timeout_s:g} s")
        unless_connected.pop_all()
    return Connected(peer=peer, channel=channel, answered_s=answered_at - sent_at, opened_s=clock() - sent_at)


class AttemptOutcome(StrEnum):
    """The result of a client's attempt."""

    ECHOED = "echoed"
    SILENT = "no echo"  # The channel opened, but not all bytes came back.
    DENIED = "denied"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """The parameters of a client's attempt to connect to one proxy."""

    network: Network
    nat: Nat = Nat.UNKNOWN
    fingerprint: str = DEFAULT_FINGERPRINT
    payload_bytes: int = 1000
    tries: int = 1  # maximum number of offers
    retry_s: float = RETRY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The result of a client's last offer. Times begin with this offer; `detail` is the broker's or client's error."""

    outcome: AttemptOutcome
    answered_ms: float | None = None
    opened_ms: float | None = None
    bytes_back: int = 0
    detail: str = ""

    @property
    def echoed(self) -> bool:
        """Return whether all bytes came back unchanged."""
        return self.outcome is AttemptOutcome.ECHOED


async def run_attempts(
    method: RendezvousMethod, plans: Sequence[AttemptPlan], *, concurrency: int
) -> Sequence[Attempt]:
    """Run a client for each plan, at most `concurrency` clients at once. Raises groups of `method`'s errors."""
    free = asyncio.Semaphore(concurrency)

    async def run_attempt(plan: AttemptPlan) -> Attempt:
        async with free:
            return await attempt(method, plan)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_attempt(plan)) for plan in plans]
    return [task.result() for task in tasks]


async def attempt(method: RendezvousMethod, plan: AttemptPlan) -> Attempt:
    """Run one client, from its first offer until its channel is closed. Raises the same errors as `method`."""
    for number in range(plan.tries):
        if number:
            await asyncio.sleep(plan.retry_s)
        outcome = await connect(method, network=plan.network, nat=plan.nat, fingerprint=plan.fingerprint)
        if isinstance(outcome, Connected):
            break
    match outcome:
        case Denied(error):
            return Attempt(outcome=AttemptOutcome.DENIED, detail=error)
        case NoReply(reason):
            return Attempt(outcome=AttemptOutcome.LOST, detail=reason)
        case Connected():
            return await _check_echo(outcome, secrets.token_bytes(plan.payload_bytes))


async def _check_echo(connected: Connected, payload: bytes) -> Attempt:
    """Send the payload and read the echo. The echo is incomplete if the proxy doesn't echo or the channel breaks."""
    async with connected.peer:
        received = asyncio.create_task(connected.channel.receive_exactly(len(payload)))
        try:
            async with asyncio.timeout(ECHO_TIMEOUT_S):
                await connected.channel.send(payload)
                back = await received
        except (TimeoutError, ConnectionResetError):
            back = b""
        finally:
            received.cancel()
    return Attempt(
        outcome=AttemptOutcome.ECHOED if back == payload else AttemptOutcome.SILENT,
        answered_ms=connected.answered_s * 1000,
        opened_ms=connected.opened_s * 1000,
        bytes_back=len(back),
        detail="" if back == payload else f"{len(back)} of {len(payload)} bytes in {ECHO_TIMEOUT_S:g} s",
    )
