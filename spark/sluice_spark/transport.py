"""HTTP/1.1 to one endpoint: kept-alive connections, plain or TLS, one exchange at a time on each. Knows nothing of SQS.

A bare asyncio protocol, as a general client costs more CPU per exchange than all the rest of the source. Fails with
the built-in errors only: ConnectionError and its kin for what broke or is no HTTP, TimeoutError, ssl's for TLS.
"""

import asyncio
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

CONNECT_WITHIN_S = 5.0  # name, TCP, the proxy's tunnel and TLS together
IDLE_LIMIT_S = 15.0  # SQS and what is before it keep idle connections longer: so the race with their close is rare
DEADLINES_EVERY_S = 0.1  # how late a deadline may be noticed: one timer for all instead of one an exchange
HAPPY_EYEBALLS_S = 0.25
HEAD_LIMIT = 64 * 2**10
ANSWER_LIMIT = 64 * 2**20  # ten messages of 1 MiB, each byte escaped as JSON does at worst
BUFFER_BYTES = 64 * 2**10  # a connection's own: ten messages of some KiB fit
HEAD_END = b"\r\n\r\n"
LINE_END = b"\r\n"
CHUNK_SIZE_LIMIT = 128  # of the line that says a chunk's size, with its extensions
HTTP_OK = 200
HTTP_PORTS = {"http": 80, "https": 443}
BODILESS = {204, 304}
# A head as SQS's usually is: nothing in it says how the body comes but one length
USUAL = re.compile(
    rb"HTTP/1\.1 (\d{3}) [^\r]*"
    rb"(?:\r\n(?!content-length|transfer-encoding|connection)[!-9;-~]+:[^\r\n]*|\r\nconnection: ?keep-alive)*"
    rb"\r\ncontent-length: ?(\d+)"
    rb"(?:\r\n(?!content-length|transfer-encoding|connection)[!-9;-~]+:[^\r\n]*|\r\nconnection: ?keep-alive)*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `head` is the status line and the headers, as they came."""

    status: int
    head: bytes
    body: bytes

    @property
    def headers(self) -> Mapping[str, str]:
        """By name in lower case; read only where they are asked for, which on the way of most answers is nowhere."""
        return _headers(self.head)


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
    """The way to `url`, by HTTP_PROXY, HTTPS_PROXY and NO_PROXY. Raises ValueError for a proxy that can't be used."""
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
        self._tls = ssl.create_default_context(cafile=ca_bundle) if self._route.tls else None
        self._slots = asyncio.Semaphore(connections)
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._under_way = 0
        self._quiet = asyncio.Event()  # set while none is under way
        self._quiet.set()
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self.connected = 0  # connections made, ever

    def encoded(self, headers: Mapping[str, str], body: bytes) -> bytes:
        """A POST as it goes over the wire; it may be sent any number of times."""
        lines = [f"POST {self._route.target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if self._route.proxy_authorization and not self._route.tunnel:
            lines.append(f"proxy-authorization: {self._route.proxy_authorization}")
        lines.append(f"content-length: {len(body)}")
        return "\r\n".join(lines).encode("latin-1") + HEAD_END + body

    async def exchange(self, request: bytes, *, within_s: float, repeatable: bool = False) -> Answer:
        """The answer, `within_s` of the request's being sent.

        A connection that the peer closed while it was idle is found out only by using it. A `repeatable` request,
        one that does the same done twice, is then sent once more on a new connection; any other raises, as the peer
        may have done it.
        """
        if self._closing:
            raise ConnectionError("closed")
        self._under_way += 1
        self._quiet.clear()
        try:
            async with self._slots:
                return await self._exchanged(request, within_s, repeatable=repeatable)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()

    async def close(self) -> None:
        """Takes no more exchanges, awaits those under way, whose deadlines bound this, and closes all connections."""
        self._closing = True
        await self._quiet.wait()
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        if self._timer:
            self._timer.cancel()

    async def _exchanged(self, request: bytes, within_s: float, *, repeatable: bool) -> Answer:
        kept = self._kept()
        if kept is not None:
            try:
                return await self._on(kept, request, within_s)
            except ConnectionError:
                if not repeatable or kept.answering:
                    raise
        return await self._on(await self._connected(), request, within_s)

    async def _on(self, connection: "_Connection", request: bytes, within_s: float) -> Answer:
        self._busy.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DEADLINES_EVERY_S, self._keep_deadlines)
        try:
            answer = await connection.asked(request, time.monotonic() + within_s)
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
        """The connection that was used last, so that those not needed grow old."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable(time.monotonic() - IDLE_LIMIT_S):
                return connection
            connection.close()
        return None

    async def _connected(self) -> "_Connection":
        route, self.connected = self._route, self.connected + 1
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                if route.tunnel:
                    return await self._tunnelled()
                return await self._opened(route.proxy_host or route.host, route.proxy_port or route.port, self._tls)
        except TimeoutError as error:
            raise TimeoutError(f"no connection to {route.host}:{route.port} within {CONNECT_WITHIN_S} s") from error

    async def _opened(self, host: str, port: int, tls: ssl.SSLContext | None) -> "_Connection":
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self._answer_limit),
            host,
            port,
            ssl=tls,
            happy_eyeballs_delay=HAPPY_EYEBALLS_S,
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
            answer = await connection.asked(request, time.monotonic() + CONNECT_WITHIN_S, bodiless=True)
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

    def __init__(self, answer_limit: int) -> None:
        self._reading = Reading(answer_limit)
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._used_at = time.monotonic()
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

    async def asked(self, request: bytes, deadline: float, *, bodiless: bool = False) -> Answer:
        """Sends, and waits for the answer. Raises ConnectionResetError if the peer has closed."""
        self.deadline = deadline
        self._reading.begin(bodiless=bodiless)
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("closed by the peer")
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    async def secured(self, tls: ssl.SSLContext, host: str) -> None:
        """TLS from here on."""
        transport = cast("asyncio.Transport", self._transport)
        self._transport = await asyncio.get_running_loop().start_tls(transport, self, tls, server_hostname=host)

    def failed(self, error: Exception) -> None:
        """Gives the one who waits the error, and the connection up."""
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
        return self._reading.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Asyncio's call: so much has come."""
        if self._waiting is None:
            self.abort()  # nobody asked: what comes here is no answer to the next request
            return
        try:
            answer = self._reading.filled(nbytes)
        except ConnectionError as error:
            self.failed(error)
            return
        if answer is not None:
            self._finish(answer)

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

    def _finish(self, answer: Answer) -> None:
        waiting, self._waiting = self._waiting, None
        self._used_at = time.monotonic()
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)


@dataclass(slots=True)
class Reading:
    """One answer after another out of the bytes that come, in whatever pieces. No I/O.

    Raises ConnectionError for what is no HTTP/1.1, or beyond `limit`.
    """

    limit: int = ANSWER_LIMIT
    begun: bool = False
    keeps: bool = True  # the peer keeps the connection open after this answer
    _buffer: bytearray = field(default_factory=lambda: bytearray(BUFFER_BYTES))
    _filled: int = 0
    _bodiless: bool = False
    _head: "_Head | None" = None
    _chunks: bytearray = field(default_factory=bytearray)

    def begin(self, *, bodiless: bool = False) -> None:
        """The next answer; `bodiless`: it has no body whatever its head says."""
        self.begun, self.keeps, self._bodiless = False, True, bodiless
        self._filled, self._head = 0, None
        if len(self._buffer) > BUFFER_BYTES:
            self._buffer = bytearray(BUFFER_BYTES)
        if self._chunks:
            self._chunks = bytearray()

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._filled == len(self._buffer):
            self._grow(2 * self._filled)
        return memoryview(self._buffer)[self._filled :]

    def filled(self, count: int) -> Answer | None:
        """`count` bytes have come into the room; the answer, if they complete it."""
        self.begun = True
        before, self._filled = self._filled, self._filled + count
        while self._head is None:
            end = self._buffer.find(HEAD_END, max(0, before - len(HEAD_END) + 1), self._filled)
            if end < 0:
                if self._filled > HEAD_LIMIT:
                    raise ConnectionError(f"a head of more than {HEAD_LIMIT} bytes")
                return None
            head = _Head.parse(bytes(memoryview(self._buffer)[:end]))
            before = 0
            if head.status >= HTTP_OK:
                self._begin_body(head, end + len(HEAD_END))
            else:
                self._drop(end + len(HEAD_END))  # 100 Continue and the like come before the answer
        return self._body(self._head)

    def ended(self) -> Answer | None:
        """No more bytes come; the answer, if that is what ends it."""
        head = self._head
        self.keeps = False
        if head is None or head.chunked or head.length is not None:
            return None
        return self._answer(head, self._filled)

    def _begin_body(self, head: "_Head", start: int) -> None:
        head.start = start
        if self._bodiless or head.status in BODILESS:
            head.length, head.chunked = 0, False
        self.keeps = head.keeps and (head.chunked or head.length is not None)
        if head.length is not None and head.length > self.limit:
            raise ConnectionError(f"an answer of {head.length} bytes, more than {self.limit}")
        if head.chunked:
            self._drop(start)
        elif head.length is not None and start + head.length > len(self._buffer):
            self._grow(start + head.length)
        self._head = head

    def _body(self, head: "_Head") -> Answer | None:
        if head.chunked:
            return self._dechunked(head)
        if head.length is None:
            if self._filled - head.start > self.limit:
                raise ConnectionError(f"an answer of more than {self.limit} bytes")
            return None
        end = head.start + head.length
        if self._filled > end:
            raise ConnectionError("more bytes than the answer's length")
        return self._answer(head, end) if self._filled == end else None

    def _answer(self, head: "_Head", end: int) -> Answer:
        return Answer(head.status, head.text, bytes(memoryview(self._buffer)[head.start : end]))

    def _dechunked(self, head: "_Head") -> Answer | None:
        at = 0
        while (line := self._buffer.find(LINE_END, at, self._filled)) >= 0:
            size = _chunk_size(bytes(self._buffer[at:line]))
            start = line + len(LINE_END)
            if size == 0:
                answer = self._trailed(head, line)
                if answer is None:
                    self._drop(at)
                return answer
            if len(self._chunks) + size > self.limit:
                raise ConnectionError(f"an answer of more than {self.limit} bytes")
            if self._filled < start + size + len(LINE_END):
                break
            if self._buffer[start + size : start + size + len(LINE_END)] != LINE_END:
                raise ConnectionError("a chunk that doesn't end where it says")
            self._chunks += memoryview(self._buffer)[start : start + size]
            at = start + size + len(LINE_END)
        else:
            if self._filled - at > CHUNK_SIZE_LIMIT:
                raise ConnectionError("a chunk without a size")
        self._drop(at)
        return None

    def _trailed(self, head: "_Head", line: int) -> Answer | None:
        """After the last chunk's size, at `line`: trailers, which say nothing to us, and an empty line."""
        end = self._buffer.find(HEAD_END, line, self._filled)
        if end < 0:
            if self._filled - line > HEAD_LIMIT:
                raise ConnectionError(f"trailers of more than {HEAD_LIMIT} bytes")
            return None
        if self._filled > end + len(HEAD_END):
            raise ConnectionError("more bytes than the answer's chunks")
        return Answer(head.status, head.text, bytes(self._chunks))

    def _drop(self, count: int) -> None:
        if count:
            rest = bytes(memoryview(self._buffer)[count : self._filled])
            self._buffer[: len(rest)] = rest
            self._filled = len(rest)

    def _grow(self, size: int) -> None:
        """A new buffer: asyncio still holds a view of the old one."""
        larger = bytearray(size)
        larger[: self._filled] = memoryview(self._buffer)[: self._filled]
        self._buffer = larger


@dataclass(slots=True)
class _Head:
    """A status line and headers, and what they say of the body, which begins at `start`."""

    status: int
    text: bytes
    length: int | None
    chunked: bool
    keeps: bool
    start: int = 0

    @classmethod
    def parse(cls, head: bytes) -> "_Head":
        """Raises ConnectionError for what is no HTTP/1.x."""
        if usual := USUAL.fullmatch(head):
            return cls(int(usual[1]), head, int(usual[2]), chunked=False, keeps=True)
        version, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise ConnectionError(f"no HTTP/1 answer: {head[:80]!r}")
        headers = _headers(head)
        chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        said = headers.get("content-length")
        if said is not None and not (said.isascii() and said.isdecimal()):
            raise ConnectionError(f"a length that is no number: {said[:80]!r}")
        length = None if said is None or chunked else int(said)
        connection = headers.get("connection", "keep-alive" if version != "HTTP/1.0" else "close").lower()
        return cls(int(rest[:3]), head, length, chunked, connection != "close")


def _headers(head: bytes) -> dict[str, str]:
    """The first of each name; raises ConnectionError for two lengths."""
    headers: dict[str, str] = {}
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        if headers.setdefault(name, value) != value and name == "content-length":
            raise ConnectionError("two different lengths of one answer")
    return headers


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits.isalnum():
        raise ConnectionError(f"a chunk's size that is no number: {line[:80]!r}")
    try:
        return int(digits, 16)
    except ValueError as error:
        raise ConnectionError(f"a chunk's size that is no number: {line[:80]!r}") from error
