"""What the real programs look for on the Internet, on loopback: STUN, NAT probe, AMP cache, relay, and a slow line."""

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
from aiohttp import web
from aioice import stun

from sluice.peers.channels import ChannelLimits, Network, Peer

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 10
PROBE_TIMEOUT_S = 20.0  # the probe server's own, and the proxy's

T = TypeVar("T")


class StunServer(asyncio.DatagramProtocol):
    """Tells whoever asks the address it asks from; of STUN's discovery of NATs it knows nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        try:
            request = stun.parse_message(data)
        except ValueError:
            return
        response = stun.Message(
            message_method=request.message_method,
            message_class=stun.Class.RESPONSE,
            transaction_id=request.transaction_id,
        )
        response.attributes["XOR-MAPPED-ADDRESS"] = address
        self._transport.sendto(bytes(response), address)


class NatProbe:
    """What decides the real proxy's NAT: it posts an offer; a channel that opens makes it `unrestricted`.

    The offer comes in the form of a poll's reply and the answer goes in the form of a proxy's answer.
    """

    def __init__(self) -> None:
        self._probes: set[asyncio.Task[None]] = set()

    async def answer(self, request: web.Request) -> web.Response:
        offer = (await request.json())["Offer"]
        peer = Peer(Network(loopback=True), ChannelLimits())
        channel = peer.first_channel()
        answer = await peer.create_answer(offer)
        probe = asyncio.create_task(self._hold(peer, channel))
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)
        return web.json_response({"Version": "1.3", "Sid": "probe", "Answer": answer})

    async def _hold(self, peer: Peer, channel: "asyncio.Future[Any]") -> None:
        # Until the proxy closes: closed by us, it might learn that before it learns that the channel is open.
        async with peer, asyncio.timeout(PROBE_TIMEOUT_S):
            await (await channel).receive()

    async def close(self) -> None:
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)


class RelayServer:
    """In the bridge's place: remembers what came, one entry a connection, and answers every message with itself."""

    def __init__(self) -> None:
        self.received: list[bytearray] = []
        self._more = asyncio.Condition()

    async def connection(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        data = bytearray()
        self.received.append(data)
        async for message in socket:
            assert message.type is aiohttp.WSMsgType.BINARY
            data += message.data
            async with self._more:
                self._more.notify_all()
            await socket.send_bytes(message.data)
        return socket

    async def has_received(self, data: bytes) -> None:
        async with self._more:
            await self._more.wait_for(lambda: any(data in received for received in self.received))


class AmpCache:
    """Gets what a cache's URL says, `/c/s/<host>/<path>`, from the broker, whatever the host."""

    def __init__(self, client_url: str) -> None:
        self._client_url = client_url.rstrip("/")

    async def get(self, request: web.Request) -> web.Response:
        url = f"{self._client_url}/{request.match_info['path']}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return web.Response(status=response.status, body=await response.read(), content_type="text/html")


class SlowLine:
    """Passes requests to SQS on, each after `delay_s`."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.delay_s = 0.0

    async def pass_on(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.delay_s)
        # Every header stays as it is, also the host: the client signed them.
        async with (
            aiohttp.ClientSession() as session,
            session.post(self._endpoint, data=await request.read(), headers=request.headers) as response,
        ):
            kept = {name: value for name, value in response.headers.items() if name.lower().startswith("x-amz")}
            return web.Response(
                status=response.status,
                body=await response.read(),
                content_type=response.content_type,
                headers=kept,
            )


class Servers:
    """All five, in a loop of their own in a thread, so that tests may block. As a context it stops them at the end.

    The relay's port is an argument, as the deployed bridge list names it, and where the cache gets the broker's pages,
    and where the slow line leads.
    """

    def __init__(self, relay_port: int, client_url: str, sqs_endpoint: str) -> None:
        self.relay = RelayServer()
        self._probe = NatProbe()
        self._relay_port = relay_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="servers", daemon=True)
        self._runners: list[web.AppRunner] = []
        self.stun_url = ""
        self.probe_url = ""
        self.cache_address = ""  # host and port
        self._cache = AmpCache(client_url)
        self.slow_line = SlowLine(sqs_endpoint)
        self.slow_sqs_url = ""

    def relay_received(self, data: bytes, *, within_s: float) -> None:
        """Fails the test where these bytes don't come over one connection in that time."""
        try:
            self._run(asyncio.wait_for(self.relay.has_received(data), within_s))
        except TimeoutError:
            raise AssertionError(f"the relay got {self.relay.received}, not {data!r}") from None

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(asyncio.wait_for(self._start(), START_TIMEOUT_S))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> None:
        await self._serve(web.get("/", self.relay.connection), self._relay_port)
        self.probe_url = f"http://{LOOPBACK}:{await self._serve(web.post('/probe', self._probe.answer), 0)}/probe"
        self.cache_address = f"{LOOPBACK}:{await self._serve(web.get('/c/s/{host}/{path:.*}', self._cache.get), 0)}"
        slow_port = await self._serve(web.post("/{path:.*}", self.slow_line.pass_on), 0)
        self.slow_sqs_url = f"http://{LOOPBACK}:{slow_port}"
        self._stun, _ = await self._loop.create_datagram_endpoint(StunServer, local_addr=(LOOPBACK, 0))
        self.stun_url = f"stun:{LOOPBACK}:{self._stun.get_extra_info('sockname')[1]}"

    async def _serve(self, route: web.RouteDef, port: int) -> int:
        application = web.Application()
        application.add_routes([route])
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        self._runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, LOOPBACK, port).start()
        return int(runner.addresses[0][1])

    async def _stop(self) -> None:
        await self._probe.close()
        self._stun.close()
        for runner in self._runners:
            await runner.cleanup()
