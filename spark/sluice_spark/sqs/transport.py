"""HTTP/1.1 to one endpoint: kept-alive connections, plain or TLS, one exchange at a time on each. Knows nothing of SQS.

A bare asyncio protocol, as a general client costs more CPU per exchange than all the rest of the source. Fails with
the built-in errors only: ConnectionError and its kin for what broke or is no HTTP, TimeoutError, ssl's for TLS.
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

from sluice_spark.sqs.answers import ANSWER_LIMIT, BUFFER_BYTES, HTTP_OK, AnswerReader, HttpAnswer

CONNECT_WITHIN_S = 5.0  # name, TCP, the proxy's tunnel and TLS together
IDLE_LIMIT_S = 15.0  # SQS and what is before it keep idle connections longer: so the race with their close is rare
DEADLINES_EVERY_S = 0.1  # how late a deadline may be noticed: one timer for all instead of one an exchange
HAPPY_EYEBALLS_S = 0.25
HTTP_PORTS = {"http": 80, "https": 443}

# Asked for so many bytes before a large answer is read; calls what it is given once there is room, at once or later
Room = Callable[[int, Callable[[], None]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How to get to an endpoint: directly, or by the proxy that the environment names."""

    host: str
    port: int
    tls: bool
    proxy_host: str | None = None
    proxy_port: int = 0
    proxy_authorization: str | None = None
    target: str = "/"  # of the request line: a proxy wants the whole URL of a plain endpoint

    @property
    def tunnel(self) -> bool:
        """TLS goes through a proxy by CONNECT, so that the proxy sees neither key nor message."""
        return self.tls and self.proxy_host is not None


def route_to(url: str) -> Route:
    """Find the way to `url`, by HTTP_PROXY, HTTPS_PROXY and NO_PROXY. Raises ValueError for a proxy of another kind."""
    parts = urlsplit(url)
    if parts.scheme not in HTTP_PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is no http or https URL")
    port = parts.port or HTTP_PORTS[parts.scheme]
    tls, path = parts.scheme == "https", parts.path or "/"
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(f"{parts.hostname}:{port}"):
        return Route(host=parts.hostname, port=port, tls=tls, target=path)
    by = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if by.scheme != "http" or not by.hostname:
        said = by._replace(netloc=by.netloc.rpartition("@")[2]).geturl()  # without its password
        raise ValueError(f"proxy {said!r} for {parts.hostname}: only http:// proxies are used; NO_PROXY goes round it")
    authorization = None
    if by.username:
        pair = f"{unquote(by.username)}:{unquote(by.password or '')}"
        authorization = f"Basic {b64encode(pair.encode()).decode()}"
    return Route(
        host=parts.hostname,
        port=port,
        tls=tls,
        proxy_host=by.hostname,
        proxy_port=by.port or HTTP_PORTS["http"],
        proxy_authorization=authorization,
        target=path if tls else f"http://{parts.netloc}{path}",
    )


class Transport:
    """Exchanges with one endpoint on at most `connections` connections. Made, used and closed in one event loop."""

    def __init__(
        self, url: str, *, connections: int, ca_bundle: str | None = None, answer_limit: int = ANSWER_LIMIT
    ) -> None:
        self._route, self._answer_limit = route_to(url), answer_limit
        self._first_lines = f"POST {self._route.target} HTTP/1.1\r\n"
        if self._route.proxy_authorization and not self._route.tunnel:
            self._first_lines += f"proxy-authorization: {self._route.proxy_authorization}\r\n"
        self._tls = ssl.create_default_context(cafile=ca_bundle) if self._route.tls else None
        self._slots = asyncio.Semaphore(connections)
        # For all connections, and so in the processor's cache: a loop reads, and says so, for one after the other
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._under_way = 0
        self._quiet = asyncio.Event()  # set once none is under way and none begins any more
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None

    def encoded(self, headers: Mapping[str, str], body: bytes) -> bytes:
        """Encode a POST as it goes over the wire; it may be sent any number of times."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        return f"{self._first_lines}{lines}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body

    async def exchange(
        self, request: bytes, *, within_s: float, repeatable: bool = False, room: Room | None = None
    ) -> HttpAnswer:
        """Have the answer, `within_s` of the request's being sent; waiting for `room` doesn't count.

        A connection that the peer closed while it was idle is found out only by using it. A `repeatable` request,
        one that does the same done twice, is then sent once more on a new connection; any other raises, as the peer
        may have done it.
        """
        if self._closing:
            raise ConnectionError("closed")
        self._under_way += 1
        try:
            await self._slots.acquire()
            try:
                if kept := self._kept():
                    try:
                        return await self._on(kept, request, within_s, room)
                    except ConnectionError:
                        if not repeatable or kept.answering:
                            raise
                return await self._on(await self._connected(), request, within_s, room)
            finally:
                self._slots.release()
        finally:
            self._under_way -= 1
            if self._closing and not self._under_way:
                self._quiet.set()

    async def close(self) -> None:
        """Take no more exchanges, await those under way, whose deadlines bound this, and close all connections."""
        self._closing = True
        if self._under_way:
            await self._quiet.wait()
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        if self._timer:
            self._timer.cancel()

    async def _on(self, connection: "_Connection", request: bytes, within_s: float, room: Room | None) -> HttpAnswer:
        self._busy.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DEADLINES_EVERY_S, self._keep_deadlines)
        try:
            answer = await connection.ask(request, within_s, room)
        except BaseException:
            connection.abort()  # an answer may still come: nobody else's
            raise
        finally:
            self._busy.discard(connection)
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _kept(self) -> "_Connection | None":
        """Take the connection that was used last, so that those not needed grow old."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable(time.monotonic() - IDLE_LIMIT_S):
                return connection
            connection.close()
        return None

    async def _connected(self) -> "_Connection":
        route = self._route
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                if route.tunnel:
                    return await self._tunnelled()
                return await self._opened(route.proxy_host or route.host, route.proxy_port or route.port, self._tls)
        except TimeoutError as error:
            raise TimeoutError(f"no connection to {route.host}:{route.port} within {CONNECT_WITHIN_S} s") from error

    async def _opened(self, host: str, port: int, tls: ssl.SSLContext | None) -> "_Connection":
        loop = asyncio.get_running_loop()
        # Asyncio's own loops alone know it, not uvloop's: there a host's addresses are tried one after the other.
        more: dict[str, Any] = {}
        if isinstance(loop, asyncio.BaseEventLoop):
            more["happy_eyeballs_delay"] = HAPPY_EYEBALLS_S
        _, connection = await loop.create_connection(
            lambda: _Connection(self._buffer, self._answer_limit, loop), host, port, ssl=tls, **more
        )
        return connection

    async def _tunnelled(self) -> "_Connection":
        route = self._route
        connection = await self._opened(route.proxy_host or "", route.proxy_port, None)
        place = f"[{route.host}]:{route.port}" if ":" in route.host else f"{route.host}:{route.port}"
        authorization = route.proxy_authorization
        proved = f"Proxy-Authorization: {authorization}\r\n" if authorization else ""
        request = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{proved}\r\n".encode()
        try:
            answer = await connection.ask(request, CONNECT_WITHIN_S, bodiless=True)
            if answer.status != HTTP_OK:
                proxy = f"{route.proxy_host}:{route.proxy_port}"
                raise ConnectionError(f"proxy {proxy} refuses: {answer.status}")  # noqa: TRY301  aborted below
            await connection.secured(cast("ssl.SSLContext", self._tls), route.host)
        except BaseException:
            connection.abort()
            raise
        return connection

    def _keep_deadlines(self) -> None:
        now = time.monotonic()
        for connection in [each for each in self._busy if each.deadline < now]:
            connection.failed(TimeoutError("no answer in time"))
        self._timer = None
        if self._busy:
            self._timer = asyncio.get_running_loop().call_later(DEADLINES_EVERY_S, self._keep_deadlines)


class _Connection(asyncio.BufferedProtocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, buffer: memoryview, answer_limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._buffer, self._reading, self._loop = buffer, AnswerReader(answer_limit), loop
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[HttpAnswer] | None = None
        self._used_at = time.monotonic()
        self._within_s = 0.0
        self._room: Room | None = None
        self.deadline = 0.0

    @property
    def answering(self) -> bool:
        """The peer has taken the request: the answer has begun."""
        return self._reading.begun

    @property
    def reusable(self) -> bool:
        """The peer keeps it open, as far as it said."""
        return self._reading.keeps and self._transport is not None and not self._transport.is_closing()

    def usable(self, since: float) -> bool:
        """Open, and used after the time `since`."""
        return self._transport is not None and not self._transport.is_closing() and self._used_at > since

    def ask(
        self, request: bytes, within_s: float, room: Room | None = None, *, bodiless: bool = False
    ) -> asyncio.Future[HttpAnswer]:
        """Send, and give what will be the answer. Raises ConnectionResetError if the peer has closed."""
        self._within_s, self._room = within_s, room
        self.deadline = time.monotonic() + within_s
        self._reading.begin(bodiless=bodiless)
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("closed by the peer")
        self._waiting = waiting = self._loop.create_future()
        self._transport.write(request)
        return waiting

    async def secured(self, tls: ssl.SSLContext, host: str) -> None:
        """TLS from here on."""
        transport = cast("asyncio.Transport", self._transport)
        self._transport = await asyncio.get_running_loop().start_tls(transport, self, tls, server_hostname=host)

    def failed(self, error: Exception) -> None:
        """Give the one who waits the error, and the connection up."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
        self.abort()

    def close(self) -> None:
        """After what is written is sent."""
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """At once."""
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's call."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  asyncio's signature
        """Asyncio's call: where to put what comes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Asyncio's call: so much has come."""
        if self._waiting is None:
            self.abort()  # nobody asked: what comes here is no answer to the next request
            return
        try:
            answer = self._reading.filled(self._buffer[:nbytes])
        except ConnectionError as error:
            self.failed(error)
            return
        if answer is not None:
            self._finish(answer)
        elif self._room is not None and self._reading.to_come and self._transport is not None:
            # Nothing is read until there is room for what comes: until then it is the kernel's, and the peer's.
            room, self._room, self.deadline = self._room, None, math.inf
            self._transport.pause_reading()
            room(self._reading.to_come, self._go_on)

    def _go_on(self) -> None:
        self.deadline = time.monotonic() + self._within_s
        if self._transport is not None:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """Asyncio's call: the peer says no more, which may end an answer. Closes."""
        answer = self._reading.ended() if self._waiting is not None else None
        if answer is not None:
            self._finish(answer)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio's call."""
        self._transport = None
        self.failed(exc if isinstance(exc, OSError) else ConnectionResetError("closed by the peer"))

    def _finish(self, answer: HttpAnswer) -> None:
        waiting, self._waiting = self._waiting, None
        self._used_at = time.monotonic()
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)
