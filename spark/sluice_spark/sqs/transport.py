"""HTTP/1.1 client of one endpoint, with kept-alive connections, each for one exchange at a time. Independent of SQS.

Connections are bare asyncio protocols: a general HTTP client takes more CPU per exchange than the rest of the source.
Raises only built-in errors: ConnectionError for broken connections and invalid HTTP, TimeoutError, ssl's errors.
"""

import asyncio
import math
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from sluice_spark.sqs.responses import ANSWER_LIMIT, BUFFER_BYTES, HTTP_OK, HttpResponse, ResponseParser

CONNECT_WITHIN_S = 5.0  # seconds for name resolution, TCP, proxy tunnel and TLS together
IDLE_LIMIT_S = 15.0  # seconds until an idle connection is closed; SQS closes idle connections later
DEADLINES_EVERY_S = 0.1  # how often one timer checks the deadlines of all exchanges
HAPPY_EYEBALLS_S = 0.25
HTTP_PORTS = {"http": 80, "https": 443}

# Called before a large response is read, with its size. Calls its second argument, now or later, when there is room.
WaitForRoom = Callable[[int, Callable[[], None]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How to reach an endpoint: directly, or through the proxy that the environment names."""

    host: str
    port: int
    tls: bool
    proxy_host: str | None = None
    proxy_port: int = 0
    proxy_authorization: str | None = None
    target: str = "/"  # in the request line; an HTTP proxy needs the whole URL

    @property
    def needs_tunnel(self) -> bool:
        """Whether to open a CONNECT tunnel for TLS, so that the proxy sees neither credentials nor messages."""
        return self.tls and self.proxy_host is not None


def route_to(url: str) -> Route:
    """Return the route to a URL, by HTTP_PROXY, HTTPS_PROXY and NO_PROXY. Raises ValueError unless a proxy is HTTP."""
    parts = urlsplit(url)
    if parts.scheme not in HTTP_PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is no http or https URL")
    port = parts.port or HTTP_PORTS[parts.scheme]
    tls, path = parts.scheme == "https", parts.path or "/"
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(f"{parts.hostname}:{port}"):
        return Route(host=parts.hostname, port=port, tls=tls, target=path)
    proxy_url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if proxy_url.scheme != "http" or not proxy_url.hostname:
        shown_url = proxy_url._replace(netloc=proxy_url.netloc.rpartition("@")[2]).geturl()  # without the password
        raise ValueError(
            f"proxy {shown_url!r} for {parts.hostname}: only http:// proxies are used; NO_PROXY goes round it"
        )
    authorization = None
    if proxy_url.username:
        pair = f"{unquote(proxy_url.username)}:{unquote(proxy_url.password or '')}"
        authorization = f"Basic {b64encode(pair.encode()).decode()}"
    return Route(
        host=parts.hostname,
        port=port,
        tls=tls,
        proxy_host=proxy_url.hostname,
        proxy_port=proxy_url.port or HTTP_PORTS["http"],
        proxy_authorization=authorization,
        target=path if tls else f"http://{parts.netloc}{path}",
    )


class Transport:
    """Exchanges messages of HTTP with one endpoint, on at most `connections` connections. Used in one event loop."""

    def __init__(
        self, url: str, *, connections: int, ca_bundle: str | None = None, answer_limit: int = ANSWER_LIMIT
    ) -> None:
        self._route, self._answer_limit = route_to(url), answer_limit
        self._first_lines = f"POST {self._route.target} HTTP/1.1\r\n"
        if self._route.proxy_authorization and not self._route.needs_tunnel:
            self._first_lines += f"proxy-authorization: {self._route.proxy_authorization}\r\n"
        self._tls = ssl.create_default_context(cafile=ca_bundle) if self._route.tls else None
        self._slots = asyncio.Semaphore(connections)
        # All connections share this buffer, which stays in the CPU cache: the event loop handles one read at a time.
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._under_way = 0
        self._quiet = asyncio.Event()  # set after `close` when no exchange is running
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None

    def encode_request(self, headers: Mapping[str, str], body: bytes) -> bytes:
        """Encode a POST request, which may be sent any number of times."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        return f"{self._first_lines}{lines}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body

    async def exchange(
        self, request: bytes, *, within_s: float, repeatable: bool = False, room: WaitForRoom | None = None
    ) -> HttpResponse:
        """Send a request and return its response within `within_s`, which excludes the wait for `room`.

        The peer might have closed an idle connection, which shows only when it is used. A `repeatable` request, which
        has no further effect if repeated, is then sent on a new connection. Others raise ConnectionError: the peer
        might have processed them.
        """
        if self._closing:
            raise ConnectionError("closed")
        self._under_way += 1
        try:
            await self._slots.acquire()
            try:
                if kept := self._take_idle_connection():
                    try:
                        return await self._exchange_on(kept, request, within_s, room)
                    except ConnectionError:
                        if not repeatable or kept.has_response_begun:
                            raise
                return await self._exchange_on(await self._connect(), request, within_s, room)
            finally:
                self._slots.release()
        finally:
            self._under_way -= 1
            if self._closing and not self._under_way:
                self._quiet.set()

    async def close(self) -> None:
        """Refuse new exchanges, await the running ones, which have deadlines, and close all connections."""
        self._closing = True
        if self._under_way:
            await self._quiet.wait()
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        if self._timer:
            self._timer.cancel()

    async def _exchange_on(
        self, connection: "_Connection", request: bytes, within_s: float, room: WaitForRoom | None
    ) -> HttpResponse:
        self._busy.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DEADLINES_EVERY_S, self._check_deadlines)
        try:
            answer = await connection.send(request, within_s, room)
        except BaseException:
            connection.abort()  # A late response must not reach another request.
            raise
        finally:
            self._busy.discard(connection)
        if connection.is_reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _take_idle_connection(self) -> "_Connection | None":
        """Take the most recently used idle connection, so that surplus connections stay idle and are closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable(time.monotonic() - IDLE_LIMIT_S):
                return connection
            connection.close()
        return None

    async def _connect(self) -> "_Connection":
        route = self._route
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                if route.needs_tunnel:
                    return await self._open_tunnel()
                return await self._open(route.proxy_host or route.host, route.proxy_port or route.port, self._tls)
        except TimeoutError as error:
            raise TimeoutError(f"no connection to {route.host}:{route.port} within {CONNECT_WITHIN_S} s") from error

    async def _open(self, host: str, port: int, tls: ssl.SSLContext | None) -> "_Connection":
        loop = asyncio.get_running_loop()
        # Only asyncio's own loops support option `happy_eyeballs_delay`. uvloop tries a host's addresses one by one.
        loop_options: dict[str, Any] = {}
        if isinstance(loop, asyncio.BaseEventLoop):
            loop_options["happy_eyeballs_delay"] = HAPPY_EYEBALLS_S
        _, connection = await loop.create_connection(
            lambda: _Connection(self._buffer, self._answer_limit, loop), host, port, ssl=tls, **loop_options
        )
        return connection

    async def _open_tunnel(self) -> "_Connection":
        route = self._route
        connection = await self._open(route.proxy_host or "", route.proxy_port, None)
        place = f"[{route.host}]:{route.port}" if ":" in route.host else f"{route.host}:{route.port}"
        authorization = route.proxy_authorization
        proxy_header = f"Proxy-Authorization: {authorization}\r\n" if authorization else ""
        request = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{proxy_header}\r\n".encode()
        try:
            answer = await connection.send(request, CONNECT_WITHIN_S, bodiless=True)
            if answer.status != HTTP_OK:
                proxy = f"{route.proxy_host}:{route.proxy_port}"
                raise ConnectionError(f"proxy {proxy} refuses: {answer.status}")  # noqa: TRY301  aborted below
            await connection.start_tls(cast("ssl.SSLContext", self._tls), route.host)
        except BaseException:
            connection.abort()
            raise
        return connection

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for connection in [busy for busy in self._busy if busy.deadline < now]:
            connection.fail(TimeoutError("no answer in time"))
        self._timer = None
        if self._busy:
            self._timer = asyncio.get_running_loop().call_later(DEADLINES_EVERY_S, self._check_deadlines)


class _Connection(asyncio.BufferedProtocol):
    """A connection, for one request and response at a time."""

    def __init__(self, buffer: memoryview, answer_limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._buffer, self._reading, self._loop = buffer, ResponseParser(answer_limit), loop
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[HttpResponse] | None = None
        self._used_at = time.monotonic()
        self._within_s = 0.0
        self._room: WaitForRoom | None = None
        self.deadline = 0.0

    @property
    def has_response_begun(self) -> bool:
        """Whether the response has begun, which proves that the peer has accepted the request."""
        return self._reading.begun

    @property
    def is_reusable(self) -> bool:
        """Whether both sides keep the connection open after the response."""
        return self._reading.keeps and self._transport is not None and not self._transport.is_closing()

    def is_usable(self, since: float) -> bool:
        """Whether the connection is open and was used after `since`, a monotonic time in seconds."""
        return self._transport is not None and not self._transport.is_closing() and self._used_at > since

    def send(
        self, request: bytes, within_s: float, room: WaitForRoom | None = None, *, bodiless: bool = False
    ) -> asyncio.Future[HttpResponse]:
        """Send a request; return the response's future. Raises ConnectionResetError if the connection is closed."""
        self._within_s, self._room = within_s, room
        self.deadline = time.monotonic() + within_s
        self._reading.begin(bodiless=bodiless)
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("closed by the peer")
        self._waiting = waiting = self._loop.create_future()
        self._transport.write(request)
        return waiting

    async def start_tls(self, tls: ssl.SSLContext, host: str) -> None:
        """Switch the connection to TLS."""
        transport = cast("asyncio.Transport", self._transport)
        self._transport = await asyncio.get_running_loop().start_tls(transport, self, tls, server_hostname=host)

    def fail(self, error: Exception) -> None:
        """Raise the error in the pending exchange, and abort the connection."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
        self.abort()

    def close(self) -> None:
        """Close the connection after the written bytes are sent."""
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport (called by asyncio)."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  asyncio's signature
        """Return the buffer for the next read (called by asyncio)."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse `nbytes` new bytes in the buffer (called by asyncio)."""
        if self._waiting is None:
            self.abort()  # Without a request, bytes are no response.
            return
        try:
            answer = self._reading.feed(self._buffer[:nbytes])
        except ConnectionError as error:
            self.fail(error)
            return
        if answer is not None:
            self._finish(answer)
        elif self._room is not None and self._reading.unread_body_bytes and self._transport is not None:
            # Reading pauses until there is room. Until then the data stays in the kernel and at the peer.
            room, self._room, self.deadline = self._room, None, math.inf
            self._transport.pause_reading()
            room(self._reading.unread_body_bytes, self._resume_reading)

    def _resume_reading(self) -> None:
        self.deadline = time.monotonic() + self._within_s
        if self._transport is not None:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """Handle the end of the peer's data, which can complete a response (called by asyncio). Return False: close."""
        answer = self._reading.end() if self._waiting is not None else None
        if answer is not None:
            self._finish(answer)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Raise an error in the pending exchange after the connection was lost (called by asyncio)."""
        self._transport = None
        self.fail(exc if isinstance(exc, OSError) else ConnectionResetError("closed by the peer"))

    def _finish(self, answer: HttpResponse) -> None:
        waiting, self._waiting = self._waiting, None
        self._used_at = time.monotonic()
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)
