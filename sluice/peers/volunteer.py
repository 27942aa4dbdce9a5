"""A proxy that polls the broker for clients, answers their offers and echoes each client's bytes in a data channel."""

import asyncio
import base64
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum

import aiohttp

from sluice.errors import CallFailed, Malformed
from sluice.peers.channels import Channel, ChannelLimits, Network, Peer
from sluice.peers.methods import post
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import Nat
from sluice.rendezvous.protocol.messages import read_object

POLL_VERSION = "1.3"
ANSWER_VERSION = "1.3"
ANY_RELAY = "$"  # In Snowflake's notation, this pattern matches every relay.
POLL_TIMEOUT_S = 30.0  # The broker holds a poll for at most 10 s.


@dataclass(frozen=True, slots=True, kw_only=True)
class VolunteerLimits:
    """Limits of a proxy. `capacity` is the maximum number of concurrent clients.

    `pause_s` limits the poll interval in the broker's NextPoll, except after a refused poll, because an earlier poll
    would be refused again.
    """

    capacity: int = 10
    open_timeout_s: float = 20.0  # Snowflake's proxy has the same limit.
    connection_s: float = 3600.0
    pause_s: float = 20.0
    pause_after_failure_s: float = 5.0
    channel: ChannelLimits = field(default_factory=ChannelLimits)


class VolunteerStep(StrEnum):
    """The kinds of a proxy's events, in the order in which they can happen to one client."""

    POLLED = "polled"
    POLL_FAILED = "poll failed"
    POLL_REFUSED = "poll refused"
    MATCHED = "matched"
    OFFER_UNUSABLE = "offer unusable"
    ANSWERED = "answered"
    ANSWER_FAILED = "answer failed"
    CLIENT_GONE = "client gone"
    OPENED = "opened"
    NOT_OPENED = "not opened"
    BROKEN = "broken"
    CUT_OFF = "cut off"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class VolunteerEvent:
    """An event of a proxy. `sid` identifies the poll, and thereby the client that the poll returned."""

    step: VolunteerStep
    sid: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMatch:
    """A client's offer, and the URL of the relay to which the proxy should send the client's bytes."""

    sid: str
    offer: str
    relay_url: str


def generate_sid() -> str:
    """Generate a random session id (Sid) of 16 bytes in base64; each poll uses a new one."""
    return base64.b64encode(secrets.token_bytes(16)).decode().rstrip("=")


async def echo(channel: Channel, relay_url: str) -> None:  # noqa: ARG001 - it uses no relay
    """Echo the client's bytes until the client closes the channel. Raises ConnectionError if the channel breaks."""
    while data := await channel.receive():
        await channel.send(data)


@dataclass(slots=True)
class Volunteer:
    """A proxy that polls a broker at `/proxy` and posts answers to `/answer`, below `broker_url`.

    `serve` is called with a client's channel and the relay's URL, serves the client until either end closes, and may
    raise any error. `counts` has the number of events of each kind; `clients` is the number of clients being served.
    """

    session: aiohttp.ClientSession
    broker_url: str
    _: KW_ONLY
    network: Network
    nat: Nat = Nat.UNKNOWN
    limits: VolunteerLimits = field(default_factory=VolunteerLimits)
    serve: Callable[[Channel, str], Awaitable[None]] = echo
    on_event: Callable[[VolunteerEvent], None] = lambda _: None
    draw_id: Callable[[], str] = generate_sid
    counts: Counter[VolunteerStep] = field(default_factory=Counter)
    clients: int = 0

    async def run(self) -> None:
        """Poll and serve clients until cancelled, then close every connection."""
        free = asyncio.Semaphore(self.limits.capacity)

        def release_slot(_: asyncio.Task[None]) -> None:
            self.clients -= 1
            free.release()

        async with asyncio.TaskGroup() as serving:
            while True:
                await free.acquire()
                match, pause_s = await self._poll_broker()
                if match is None:
                    free.release()
                else:
                    self.clients += 1
                    serving.create_task(self._serve_client(match)).add_done_callback(release_slot)
                await asyncio.sleep(pause_s)

    async def _poll_broker(self) -> tuple[ClientMatch | None, float]:
        """Poll the broker. Returns the matched client, if any, and the seconds to wait before the next poll."""
        sid = self.draw_id()
        poll = {
            "Sid": sid,
            "Version": POLL_VERSION,
            "Type": "standalone",
            "NAT": self.nat,
            "Clients": self.clients,
            "AcceptedRelayPattern": ANY_RELAY,
        }
        try:
            body = json.dumps(poll).encode()
            reply = await post(self.session, self.broker_url.rstrip("/") + "/proxy", body, timeout_s=POLL_TIMEOUT_S)
            fields = read_object(reply, {"Status": str, "Offer": str, "NextPoll": int, "RelayURL": str})
        except (CallFailed, Malformed) as error:
            self._record_event(VolunteerStep.POLL_FAILED, sid, str(error))
            return None, self.limits.pause_after_failure_s
        status = fields.get("Status", "")
        self._record_event(VolunteerStep.POLLED, sid, status)
        next_poll_s = max(fields.get("NextPoll", 0), 0) / 1000
        if status == End.POLL_REFUSED.reply:
            self._record_event(VolunteerStep.POLL_REFUSED, sid, f"next poll in {next_poll_s:g} s")
            return None, next_poll_s
        pause_s = min(next_poll_s, self.limits.pause_s)
        if status != End.POLL_MATCHED.reply:
            return None, pause_s
        relay_url = fields.get("RelayURL", "")
        self._record_event(VolunteerStep.MATCHED, sid, relay_url)
        return ClientMatch(sid=sid, offer=fields.get("Offer", ""), relay_url=relay_url), pause_s

    async def _serve_client(self, match: ClientMatch) -> None:
        try:
            async with Peer(self.network, self.limits.channel) as peer:
                channel = peer.first_channel()
                if await self._answer_offer(match, peer):
                    await self._serve_channel(match, channel)
        except Exception as error:  # noqa: BLE001 - an error of one client or relay must not end the others
            self._record_event(VolunteerStep.BROKEN, match.sid, f"{type(error).__name__}: {error}")

    async def _answer_offer(self, match: ClientMatch, peer: Peer) -> bool:
        """Answer the offer. Returns whether the client was still waiting for the answer."""
        try:
            answer = await peer.create_answer(match.offer)
        except Malformed as error:
            self._record_event(VolunteerStep.OFFER_UNUSABLE, match.sid, str(error))
            return False
        body = json.dumps({"Version": ANSWER_VERSION, "Sid": match.sid, "Answer": answer}).encode()
        try:
            reply = await post(self.session, self.broker_url.rstrip("/") + "/answer", body, timeout_s=POLL_TIMEOUT_S)
            delivered = read_object(reply, {"Status": str}).get("Status") == "success"
        except (CallFailed, Malformed) as error:
            self._record_event(VolunteerStep.ANSWER_FAILED, match.sid, str(error))
            return False
        self._record_event(VolunteerStep.ANSWERED if delivered else VolunteerStep.CLIENT_GONE, match.sid)
        return delivered

    async def _serve_channel(self, match: ClientMatch, first: asyncio.Future[Channel]) -> None:
        try:
            async with asyncio.timeout(self.limits.open_timeout_s):
                channel = await first
        except TimeoutError:
            self._record_event(VolunteerStep.NOT_OPENED, match.sid, f"in {self.limits.open_timeout_s:g} s")
            return
        self._record_event(VolunteerStep.OPENED, match.sid)
        try:
            async with asyncio.timeout(self.limits.connection_s) as limit:
                await self.serve(channel, match.relay_url)
        except TimeoutError:
            if not limit.expired():
                raise
            self._record_event(VolunteerStep.CUT_OFF, match.sid, f"after {self.limits.connection_s:g} s")
        else:
            self._record_event(VolunteerStep.CLOSED, match.sid, channel.fault or "")

    def _record_event(self, step: VolunteerStep, sid: str, detail: str = "") -> None:
        self.counts[step] += 1
        self.on_event(VolunteerEvent(step, sid, detail))


@asynccontextmanager
async def serving(volunteers: Iterable[Volunteer]) -> AsyncIterator[None]:
    """Run the proxies while the context is open, and close every connection at its end."""
    running = [asyncio.create_task(volunteer.run()) for volunteer in volunteers]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
