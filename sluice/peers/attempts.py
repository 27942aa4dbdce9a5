"""Clients one after the other and side by side: each offers, opens a channel, and has bytes echoed."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sluice.peers.channels import Network
from sluice.peers.client import Connected, connect
from sluice.peers.methods import Denied, Lost, RendezvousMethod
from sluice.rendezvous.protocol.matching import Nat
from sluice.rendezvous.protocol.messages import DEFAULT_FINGERPRINT

ECHO_TIMEOUT_S = 30.0


class AttemptOutcome(StrEnum):
    """How far a client came."""

    ECHOED = "echoed"
    SILENT = "no echo"  # a channel, but not all bytes came back
    DENIED = "denied"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """What every client does."""

    network: Network
    nat: Nat = Nat.UNKNOWN
    fingerprint: str = DEFAULT_FINGERPRINT
    payload_bytes: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What became of one client. Times count from its offer's send; `detail` is the broker's error or ours."""

    outcome: AttemptOutcome
    answered_ms: float | None = None
    opened_ms: float | None = None
    bytes_back: int = 0
    detail: str = ""

    @property
    def echoed(self) -> bool:
        """Whether all bytes came back as they went."""
        return self.outcome is AttemptOutcome.ECHOED


async def attempt_all(method: RendezvousMethod, plans: Sequence[AttemptPlan], *, concurrency: int) -> Sequence[Attempt]:
    """Run a client for each plan, at most `concurrency` at once; in their order. Raises groups of `method`'s errors."""
    free = asyncio.Semaphore(concurrency)

    async def one(plan: AttemptPlan) -> Attempt:
        async with free:
            return await attempt(method, plan)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(plan)) for plan in plans]
    return [task.result() for task in tasks]


async def attempt(method: RendezvousMethod, plan: AttemptPlan) -> Attempt:
    """Run one client, from its offer to the end of its channel. Raises what `method` raises."""
    outcome = await connect(method, network=plan.network, nat=plan.nat, fingerprint=plan.fingerprint)
    match outcome:
        case Denied(error):
            return Attempt(outcome=AttemptOutcome.DENIED, detail=error)
        case Lost(reason):
            return Attempt(outcome=AttemptOutcome.LOST, detail=reason)
        case Connected():
            return await _echo(outcome, secrets.token_bytes(plan.payload_bytes))


async def _echo(connected: Connected, payload: bytes) -> Attempt:
    """Less comes back where the proxy is no echo or the channel breaks."""
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
        answered_ms=connected.timings.answered_s * 1000,
        opened_ms=connected.timings.opened_s * 1000,
        bytes_back=len(back),
        detail="" if back == payload else f"{len(back)} of {len(payload)} bytes in {ECHO_TIMEOUT_S:g} s",
    )
