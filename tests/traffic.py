"""Clients' offers and proxies' answers without WebRTC: real requests and real SDP, to load a site or to script one.

A volunteer of `sluice.peers` costs some 50 ms of CPU a connection; these cost their requests.
"""

import asyncio
import json
import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import aiohttp

from sluice.errors import CallFailed
from sluice.peers.methods import build_offer_message, post
from sluice.peers.volunteer import ANSWER_VERSION, POLL_TIMEOUT_S, POLL_VERSION, generate_sid
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import Nat
from sluice.rendezvous.protocol.messages import DEFAULT_FINGERPRINT, read_object

AGAIN_AFTER_S = 20.0  # where a broker couldn't say
# As a browser or aiortc writes it for one data channel; `{name}` makes descriptions tell apart.
SDP = """v=0
o=- {name} 2 IN IP4 127.0.0.1
s=-
t=0 0
a=group:BUNDLE 0
m=application 9 UDP/DTLS/SCTP webrtc-datachannel
c=IN IP4 0.0.0.0
a=candidate:1 1 udp 2130706431 127.0.0.1 50000 typ host
a=ice-ufrag:EsAw
a=ice-pwd:P2uYro0UCOQ4zxjKXaWCBui1
a=fingerprint:sha-256 19:E2:1C:3B:4B:9F:81:E6:B8:5C:F4:A5:A8:D8:73:04:BB:05:2F:70:9F:04:A9:0E:05:E9:26:33:E8:70:88:A2
a=setup:{setup}
a=mid:0
a=sctp-port:5000
a=max-message-size:262144
"""


def draw_number() -> str:
    """Draw what tells a description from all others, in the form of an SDP session id."""
    return str(secrets.randbits(62))


def offer(name: str) -> str:
    """Write an offer as the JSON text of `{type, sdp}`."""
    return json.dumps({"type": "offer", "sdp": SDP.format(name=name, setup="actpass").replace("\n", "\r\n")})


def answer(name: str) -> str:
    """Write an answer as the JSON text of `{type, sdp}`."""
    return json.dumps({"type": "answer", "sdp": SDP.format(name=name, setup="active").replace("\n", "\r\n")})


def offer_body(name: str, *, nat: Nat = Nat.UNKNOWN, fingerprint: str = DEFAULT_FINGERPRINT) -> str:
    """Give the message that carries an offer."""
    return build_offer_message(offer(name), nat=nat, fingerprint=fingerprint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """A broker's reply to a poll."""

    sid: str
    status: str
    offer: str
    relay_url: str
    next_poll_s: float

    @property
    def matched(self) -> bool:
        """Whether it has a client."""
        return self.status == End.POLL_MATCHED.reply


@dataclass(slots=True)
class Proxies:
    """Any number of proxies on one HTTP session. Raises `CallFailed` where the broker can't be reached."""

    session: aiohttp.ClientSession
    broker_url: str
    nat: Nat = Nat.UNRESTRICTED
    statuses: Counter[str] = field(default_factory=Counter)  # how polls ended, since the start

    async def poll(self, sid: str | None = None, *, clients: int = 0) -> Polled:
        """One poll, held by the broker up to ten seconds."""
        sid = sid or generate_sid()
        poll = {"Sid": sid, "Version": POLL_VERSION, "Type": "standalone", "NAT": self.nat, "Clients": clients}
        body = json.dumps(poll | {"AcceptedRelayPattern": "$"}).encode()
        fields = read_object(
            await post(self.session, f"{self.broker_url.rstrip('/')}/proxy", body, timeout_s=POLL_TIMEOUT_S),
            {"Status": str, "Offer": str, "RelayURL": str, "NextPoll": int},
        )
        self.statuses[fields["Status"]] += 1
        return Polled(
            sid=sid,
            status=fields["Status"],
            offer=fields.get("Offer", ""),
            relay_url=fields.get("RelayURL", ""),
            next_poll_s=fields.get("NextPoll", 0) / 1000,
        )

    async def answer(self, sid: str, text: str) -> str:
        """Send an answer; the broker's status."""
        body = json.dumps({"Version": ANSWER_VERSION, "Sid": sid, "Answer": text}).encode()
        reply = await post(self.session, f"{self.broker_url.rstrip('/')}/answer", body, timeout_s=POLL_TIMEOUT_S)
        status: str = read_object(reply, {"Status": str})["Status"]
        return status

    async def obey(self, *, random: Random) -> None:
        """One proxy that polls when it was told to, give or take, and answers every offer at once, until cancelled."""
        while True:
            next_poll_s = AGAIN_AFTER_S
            with suppress(CallFailed):
                polled = await self.poll()
                next_poll_s = polled.next_poll_s
                if polled.matched:
                    await self.answer(polled.sid, answer(draw_number()))
            await asyncio.sleep(next_poll_s * random.uniform(0.95, 1.1))

    async def serve(self) -> None:
        """One proxy that polls without a pause and answers every offer at once, until cancelled."""
        while True:
            try:
                polled = await self.poll()
                if polled.matched:
                    await self.answer(polled.sid, answer(draw_number()))
            except CallFailed as error:
                self.statuses[f"{error.operation.rsplit('/', 1)[-1]}: {error.code}"] += 1
                await asyncio.sleep(1)
