"""Clients and volunteers over a fake broker: real WebRTC on loopback, no AWS."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from sluice.errors import CallFailed, Malformed, QueueGone
from sluice.peers.channels import LOOPBACK, Channel, ChannelLimits, Network, Peer
from sluice.peers.client import AttemptOutcome, AttemptPlan, Connected, attempt, connect
from sluice.peers.methods import (
    Answered,
    ClientTimeouts,
    Denied,
    NoReply,
    RendezvousMethod,
    Reply,
    exchange_over_http,
    exchange_over_sqs,
    generate_client_id,
    parse_reply,
)
from sluice.peers.volunteer import Volunteer, VolunteerEvent, VolunteerLimits, VolunteerStep, echo
from sluice.rendezvous.protocol.matching import Nat

ON_LOOPBACK = Network(loopback=True)
AT_ONCE = ClientTimeouts(before_lookup_s=0, lookups=5, between_lookups_s=0, receives=2, wait_s=0)
LIMITS = VolunteerLimits(capacity=4, pause_s=0, pause_after_failure_s=0)
OFFER = json.dumps({"type": "offer", "sdp": "v=0"})


class FakeBroker:
    """Hands each offer to the next poll. Offers come over SQS (it is an `OfferQueues`) or HTTP (`application`)."""

    def __init__(self, *, relay_url: str = "wss://relay.example/") -> None:
        self.relay_url = relay_url
        self.next_poll_ms = 0
        self.reply_status = 200
        self.poll_status: str | None = None
        self.polls: list[dict[str, Any]] = []
        self.sent: list[tuple[str, str]] = []
        self.client_gone = False
        self._offers: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._by_sid: dict[str, str] = {}
        self._replies: dict[str, asyncio.Future[str]] = {}

    async def send_offer(self, client_id: str, body: str) -> None:
        self.sent.append((client_id, body))
        self._replies[client_id] = asyncio.get_running_loop().create_future()
        self._offers.put_nowait((client_id, json.loads(body.partition("\n")[2])["offer"]))

    async def queue_url(self, name: str) -> str:
        return "queue:" + name.removeprefix("snowflake-client-")

    async def receive(self, queue_url: str, *, wait_s: int) -> str | None:
        return await self._replies[queue_url.removeprefix("queue:")]

    def application(self) -> web.Application:
        application = web.Application()
        application.add_routes(
            [web.post("/proxy", self.proxy), web.post("/answer", self.answer), web.post("/client", self.client)]
        )
        return application

    async def proxy(self, request: web.Request) -> web.Response:
        poll = await request.json()
        self.polls.append(poll)
        if self.reply_status != 200:
            return web.Response(status=self.reply_status)
        if self.poll_status is not None:
            return self._poll_reply(self.poll_status, "")
        client_id, offer = await self._offers.get()
        self._by_sid[poll["Sid"]] = client_id
        return self._poll_reply("client match", offer)

    def _poll_reply(self, status: str, offer: str) -> web.Response:
        reply = {"Status": status, "Offer": offer, "NAT": "unknown"}
        return web.json_response(reply | {"NextPoll": self.next_poll_ms, "RelayURL": self.relay_url})

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.client_gone:
            return web.json_response({"Status": "client gone"})
        self._replies[self._by_sid[body["Sid"]]].set_result(json.dumps({"answer": body["Answer"]}))
        return web.json_response({"Status": "success"})

    async def client(self, request: web.Request) -> web.Response:
        await self.send_offer("over-http", await request.text())
        return web.Response(text=await self._replies["over-http"])


def through(queues: Any) -> RendezvousMethod:
    """Rendezvous over a stand-in for SQS."""
    return exchange_over_sqs(queues, patience=AT_ONCE)


class ScriptedQueues:
    """Gives these replies to ReceiveMessage, after `missing` lookups that find no queue."""

    def __init__(self, *replies: str | None, missing: int = 0) -> None:
        self.replies = list(replies)
        self.missing = missing
        self.lookups = 0

    async def send_offer(self, client_id: str, body: str) -> None:
        pass

    async def queue_url(self, name: str) -> str:
        self.lookups += 1
        if self.lookups <= self.missing:
            raise QueueGone(name)
        return name

    async def receive(self, queue_url: str, *, wait_s: int) -> str | None:
        return self.replies.pop(0)


@asynccontextmanager
async def served(application: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, LOOPBACK, 0)
    await site.start()
    try:
        yield f"http://{LOOPBACK}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Events:
    """What happened to a volunteer, to be waited for."""

    def __init__(self) -> None:
        self.seen: list[VolunteerEvent] = []
        self._more = asyncio.Event()

    def note(self, event: VolunteerEvent) -> None:
        self.seen.append(event)
        self._more.set()

    async def first(self, what: VolunteerStep) -> VolunteerEvent:
        while not (found := [event for event in self.seen if event.step is what]):
            self._more.clear()
            await self._more.wait()
        return found[0]


@dataclass(frozen=True)
class Site:
    """A fake broker and a volunteer that polls it."""

    broker: FakeBroker
    volunteer: Volunteer
    url: str
    session: aiohttp.ClientSession
    events: Events

    async def saw(self, what: VolunteerStep) -> VolunteerEvent:
        return await self.events.first(what)

    async def connected(self, exchange: RendezvousMethod | None = None) -> Connected:
        outcome = await connect(exchange or through(self.broker), network=ON_LOOPBACK)
        assert isinstance(outcome, Connected), outcome
        return outcome


@asynccontextmanager
async def site(
    broker: FakeBroker | None = None,
    *,
    serve: Callable[[Channel, str], Awaitable[None]] = echo,
    limits: VolunteerLimits = LIMITS,
    nat: Nat = Nat.UNRESTRICTED,
) -> AsyncIterator[Site]:
    broker = broker or FakeBroker()
    async with aiohttp.ClientSession() as session, served(broker.application()) as url:
        events = Events()
        volunteer = Volunteer(
            session, url, network=ON_LOOPBACK, nat=nat, limits=limits, serve=serve, on_event=events.note
        )
        running = asyncio.create_task(volunteer.run())
        try:
            yield Site(broker, volunteer, url, session, events)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test in a loop of its own, at most 30 s long."""

    def in_loop() -> None:
        asyncio.run(asyncio.wait_for(test(), 30))

    in_loop.__name__ = test.__name__
    return in_loop


def answering(reply: Reply) -> RendezvousMethod:
    async def exchange(message: str) -> Reply:
        return reply

    return exchange


# Client and volunteer together


@run
async def test_bytes_come_back_from_an_echoing_volunteer() -> None:
    async with site() as here:
        connected = await here.connected()
        async with connected.peer:
            await connected.channel.send(b"ping")
            assert await connected.channel.receive_exactly(4) == b"ping"
        assert 0 < connected.answered_s < connected.opened_s
        await here.saw(VolunteerStep.CLOSED)
        happened = [event.step for event in here.events.seen if event.step is not VolunteerStep.POLLED]
        assert happened == [
            VolunteerStep.MATCHED,
            VolunteerStep.ANSWERED,
            VolunteerStep.OPENED,
            VolunteerStep.CLOSED,
        ]


@run
async def test_a_megabyte_arrives_whole_and_in_order() -> None:
    data = bytes(range(256)) * 4096
    async with site() as here:
        connected = await here.connected()
        async with connected.peer:
            sending = asyncio.create_task(connected.channel.send(data))
            assert await connected.channel.receive_exactly(len(data)) == data
            await sending


@run
async def test_an_offer_also_goes_over_http() -> None:
    async with site() as here:
        connected = await here.connected(exchange_over_http(here.session, here.url + "/"))
        async with connected.peer:
            await connected.channel.send(b"ping")
            assert await connected.channel.receive_exactly(4) == b"ping"


@run
async def test_one_volunteer_serves_several_clients_at_once_and_says_how_many() -> None:
    async with site() as here:
        connected = [await here.connected() for _ in range(3)]
        for number, client in enumerate(connected):
            await client.channel.send(b"%d" % number)
        assert [await client.channel.receive_exactly(1) for client in connected] == [b"0", b"1", b"2"]
        assert here.volunteer.clients == 3
        assert [poll["Clients"] for poll in here.broker.polls][:3] == [0, 1, 2]
        for client in connected:
            await client.peer.close()


@run
async def test_a_stopped_volunteer_closes_its_clients_channels() -> None:
    async with site() as here:
        connected = await here.connected()
    async with connected.peer:
        assert await connected.channel.receive() == b""
        with pytest.raises(ConnectionResetError):
            await connected.channel.send(b"too late")


# VolunteerStep the client says and hears


@run
async def test_the_offer_is_the_protocols_message_with_all_its_candidates() -> None:
    async with site() as here:
        connected = await here.connected()
        await connected.peer.close()
        client_id, body = here.broker.sent[0]
    version, _, text = body.partition("\n")
    message = json.loads(text)
    assert (version, message["nat"], len(message["fingerprint"])) == ("1.0", "unknown", 40)
    assert json.loads(message["offer"])["type"] == "offer"
    assert "a=end-of-candidates" in message["offer"]
    assert len(client_id) == 16


def test_a_client_id_is_sixteen_hex_characters_and_new_every_time() -> None:
    drawn = {generate_client_id() for _ in range(100)}
    assert len(drawn) == 100
    assert all(len(name) == 16 and set(name) <= set("0123456789abcdef") for name in drawn)


@run
async def test_a_denied_client_gets_the_brokers_words() -> None:
    queues = ScriptedQueues('{"error": "no snowflake proxies currently available"}')
    outcome = await connect(through(queues), network=ON_LOOPBACK)
    assert outcome == Denied("no snowflake proxies currently available")


@run
async def test_a_denied_client_offers_as_often_as_planned() -> None:
    denials = [Denied("no snowflake proxies currently available")] * 5

    async with site() as here:

        async def deny_five_times(message: str) -> Reply:
            return denials.pop() if denials else await through(here.broker)(message)

        plan = AttemptPlan(network=ON_LOOPBACK, tries=3, retry_s=0)
        assert (await attempt(deny_five_times, plan)).outcome is AttemptOutcome.DENIED
        assert (await attempt(deny_five_times, plan)).outcome is AttemptOutcome.ECHOED


@run
async def test_a_client_without_an_answer_queue_is_lost_after_five_lookups() -> None:
    queues = ScriptedQueues(missing=99)
    outcome = await connect(through(queues), network=ON_LOOPBACK)
    assert outcome == NoReply("the broker created no answer queue")
    assert queues.lookups == 5


@run
async def test_a_late_answer_queue_and_an_empty_receive_are_waited_for() -> None:
    queues = ScriptedQueues(None, '{"error": "at last"}', missing=4)
    assert await through(queues)("message") == Denied("at last")


@run
async def test_a_client_without_a_reply_is_lost() -> None:
    queues = ScriptedQueues(None, None)
    assert await through(queues)("message") == NoReply("no reply in the answer queue")


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "{}", '{"answer": ""}', '{"answer": 1}', '{"answer": "{}"}', '{"answer": "v=0"}']
)
def test_a_malformed_reply_is_a_lost_offer(body: str) -> None:
    outcome = parse_reply(body)
    assert isinstance(outcome, NoReply)
    assert outcome.reason.startswith("malformed reply: ")


@pytest.mark.parametrize(
    "sdp", ["", "v=0\r\n", "m=application\r\n", "m=audio 9 UDP/TLS/RTP/SAVPF 0\r\n", "m=application x y z\r\na=b\r\n"]
)
def test_an_answer_that_is_no_answer_is_a_lost_offer(sdp: str) -> None:
    answer = Answered(json.dumps({"type": "answer", "sdp": sdp}))
    outcome = asyncio.run(connect(answering(answer), network=ON_LOOPBACK))
    assert isinstance(outcome, NoReply)
    assert outcome.reason.startswith("unusable answer: ")


@run
async def test_an_answer_from_nobody_is_a_lost_offer() -> None:
    elsewhere = Peer(ON_LOOPBACK, ChannelLimits())

    async def answer_and_vanish(message: str) -> Reply:
        answer = await elsewhere.create_answer(json.loads(message.partition("\n")[2])["offer"])
        await elsewhere.close()
        return Answered(answer)

    outcome = await connect(answer_and_vanish, network=ON_LOOPBACK, open_timeout_s=0.5)
    assert outcome == NoReply("the data channel didn't open in 0.5 s")


@run
async def test_a_broker_that_cannot_be_reached_is_no_lost_offer() -> None:
    async with aiohttp.ClientSession() as session, served(web.Application()) as url:
        with pytest.raises(CallFailed):
            await connect(exchange_over_http(session, url), network=ON_LOOPBACK)


# VolunteerStep the volunteer says and hears


@run
async def test_a_poll_is_the_protocols() -> None:
    async with site() as here:
        here.broker.poll_status = "no match"
        await here.saw(VolunteerStep.POLLED)
        poll = here.broker.polls[0]
        assert len({poll["Sid"] for poll in here.broker.polls}) == len(here.broker.polls)
        del poll["Sid"]
        assert poll == {
            "Version": "1.3",
            "Type": "standalone",
            "NAT": "unrestricted",
            "Clients": 0,
            "AcceptedRelayPattern": "$",
        }


@pytest.mark.parametrize(
    ("status", "next_poll_ms", "pause_s", "expected_s"),
    [
        ("no match", 500, 20, 0.5),
        ("no match", 20_000, 3, 3),
        ("incorrect relay pattern", 3_600_000, 3, 3_600),
    ],
)
def test_the_brokers_next_poll_is_kept_up_to_our_own_pause_unless_it_refused_us(
    status: str, next_poll_ms: int, pause_s: float, expected_s: float
) -> None:
    async def test() -> None:
        broker, limits = FakeBroker(), VolunteerLimits(pause_s=pause_s)
        broker.poll_status, broker.next_poll_ms = status, next_poll_ms
        async with served(broker.application()) as url, aiohttp.ClientSession() as session:
            volunteer = Volunteer(session, url, network=ON_LOOPBACK, limits=limits)
            assert await volunteer._poll_broker() == (None, expected_s)

    run(test)()


@pytest.mark.parametrize("status", [400, 500])
def test_a_failed_poll_is_tried_again(status: int) -> None:
    async def test() -> None:
        broker = FakeBroker()
        broker.reply_status = status
        async with site(broker) as here:
            await here.saw(VolunteerStep.POLL_FAILED)
            broker.reply_status = 200
            connected = await here.connected()
            await connected.peer.close()

    run(test)()


@run
async def test_a_client_that_is_gone_gets_no_channel() -> None:
    broker = FakeBroker()
    broker.client_gone = True
    async with site(broker) as here, Peer(ON_LOOPBACK, ChannelLimits()) as peer:
        peer.open_channel()
        await broker.send_offer("gone", "1.0\n" + json.dumps({"offer": await peer.create_offer()}))
        await here.saw(VolunteerStep.CLIENT_GONE)
        assert here.volunteer.counts[VolunteerStep.OPENED] == 0


@pytest.mark.parametrize("offer", ["", "{}", OFFER, OFFER.replace("offer", "answer")])
def test_an_unusable_offer_is_passed_over_and_the_next_one_served(offer: str) -> None:
    async def test() -> None:
        async with site() as here:
            await here.broker.send_offer("bad", "1.0\n" + json.dumps({"offer": offer}))
            await here.saw(VolunteerStep.OFFER_UNUSABLE)
            connected = await here.connected()
            await connected.peer.close()

    run(test)()


# Limits


@run
async def test_a_client_that_opens_no_channel_is_given_up() -> None:
    async with site(limits=VolunteerLimits(pause_s=0, open_timeout_s=0.2)) as here:
        async with Peer(ON_LOOPBACK, ChannelLimits()) as peer:
            peer.open_channel()
            await here.broker.send_offer("mute", "1.0\n" + json.dumps({"offer": await peer.create_offer()}))
            await here.saw(VolunteerStep.NOT_OPENED)
        await until(lambda: here.volunteer.clients == 0)


@run
async def test_a_connection_ends_at_its_time_limit() -> None:
    async with site(limits=VolunteerLimits(pause_s=0, connection_s=0.2)) as here:
        connected = await here.connected()
        async with connected.peer:
            assert await connected.channel.receive() == b""
        await here.saw(VolunteerStep.CUT_OFF)


@run
async def test_a_full_volunteer_does_not_poll() -> None:
    async with site(limits=VolunteerLimits(pause_s=0, capacity=1)) as here:
        first = await here.connected()
        assert len(here.broker.polls) == 1
        await first.peer.close()
        second = await here.connected()
        await second.peer.close()
        assert [poll["Clients"] for poll in here.broker.polls[:2]] == [0, 0]


@run
async def test_a_message_over_the_limit_closes_the_channel() -> None:
    limits = VolunteerLimits(pause_s=0, channel=ChannelLimits(message_bytes=1000))
    async with site(limits=limits) as here:
        connected = await here.connected()
        async with connected.peer:
            await connected.channel.send(bytes(1001))
            assert await connected.channel.receive() == b""
        assert (await here.saw(VolunteerStep.CLOSED)).detail == "a message of more than 1000 bytes"


@run
async def test_more_unread_bytes_than_the_limit_close_the_channel() -> None:
    async with site() as here:
        exchange = through(here.broker)
        connected = await connect(exchange, network=ON_LOOPBACK, limits=ChannelLimits(unread_bytes=3000))
        assert isinstance(connected, Connected)
        async with connected.peer:
            for _ in range(4):
                await connected.channel.send(bytes(1000))
            await until(lambda: connected.channel.fault is not None)
            assert connected.channel.fault == "more than 3000 unread bytes"
            assert await connected.channel.receive_exactly(9999) == bytes(3000)


@run
async def test_a_service_that_fails_ends_the_channel() -> None:
    async def fail(channel: Channel, relay_url: str) -> None:
        raise ConnectionResetError(f"{relay_url} is gone")

    async with site(serve=fail) as here:
        connected = await here.connected()
        async with connected.peer:
            assert await connected.channel.receive() == b""
        assert "wss://relay.example/ is gone" in (await here.saw(VolunteerStep.BROKEN)).detail


# WebRTC


@run
async def test_on_loopback_nothing_but_loopback_is_offered() -> None:
    async with Peer(ON_LOOPBACK, ChannelLimits()) as peer:
        peer.open_channel()
        assert set(candidate_addresses(await peer.create_offer())) == {LOOPBACK}


@run
async def test_ends_on_different_addresses_of_the_loopback_reach_each_other() -> None:
    async with Peer(Network(loopback=True, loopback_address="127.9.0.1"), ChannelLimits()) as client:
        mine = client.open_channel()
        offer = await client.create_offer()
        assert set(candidate_addresses(offer)) == {"127.9.0.1"}
        async with Peer(ON_LOOPBACK, ChannelLimits()) as proxy:
            first = proxy.first_channel()
            await client.accept_answer(await proxy.create_answer(offer))
            theirs = await first
            assert await mine.wait_until_open()
            await mine.send(b"ping")
            assert await theirs.receive_exactly(4) == b"ping"


@run
async def test_on_loopback_the_other_ends_further_addresses_are_not_tried() -> None:
    async with Peer(ON_LOOPBACK, ChannelLimits()) as client, Peer(ON_LOOPBACK, ChannelLimits()) as proxy:
        client.open_channel()
        offer = json.loads(await client.create_offer())
        line = next(line for line in offer["sdp"].splitlines(keepends=True) if line.startswith("a=candidate:"))
        offer["sdp"] += line.replace(LOOPBACK, "192.0.2.9") + "a=candidate:short\r\n"
        await proxy.create_answer(json.dumps(offer))
        channels: Any = proxy._connection.sctp
        gatherer = channels.transport.transport
        assert {candidate.ip for candidate in gatherer.getRemoteCandidates()} == {LOOPBACK}


@run
async def test_an_answer_to_sound_is_refused() -> None:
    async with Peer(ON_LOOPBACK, ChannelLimits()) as client, Peer(ON_LOOPBACK, ChannelLimits()) as proxy:
        client.open_channel()
        offer = json.loads(await client.create_offer())
        offer["sdp"] += "m=audio 9 UDP/TLS/RTP/SAVPF 0\r\n"
        with pytest.raises(Malformed, match="not one data channel"):
            await proxy.create_answer(json.dumps(offer))


def candidate_addresses(description: str) -> list[str]:
    lines = json.loads(description)["sdp"].splitlines()
    return [line.split()[4] for line in lines if line.startswith("a=candidate:")]


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until it holds; the test's own time limit ends it otherwise."""
    while not condition():
        await asyncio.sleep(0)
