"""The transport against a peer that says exactly what a test wants, byte by byte; and the reader alone, in pieces."""

import asyncio
import ssl
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.sqs.responses import HttpResponse, ResponseParser
from sluice_spark.sqs.transport import Transport, route_to

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSE = b""  # closes instead of an answer
SILENCE = None  # never answers

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Peer:
    """Answers each request with the next of `answers`, then as the last; counts connections, keeps the requests."""

    def __init__(self, answers: Sequence[bytes | None] = (OK,)) -> None:
        self.answers, self.requests, self.connections = list(answers), list[bytes](), 0
        self.writers: list[asyncio.StreamWriter] = []
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].partition(b":")[2])) if length else b""
                self.requests.append(head + body)
                self.asked.set()
                await self.go.wait()
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer == CLOSE:
                    break
                if answer is not SILENCE:
                    writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()


Use = Callable[[Transport, Peer], Awaitable[Any]]


def run(
    answers: Sequence[bytes | None], use: Use, *, tls: ssl.SSLContext | None = None, loop: Any = None, **options: Any
) -> Any:
    async def whole() -> Any:
        peer = Peer(answers)
        server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        scheme, host = ("https", "localhost") if tls else ("http", "127.0.0.1")
        transport = Transport(f"{scheme}://{host}:{port}/", **{"connections": 2, **options})
        async with server:
            try:
                return await use(transport, peer)
            finally:
                await transport.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(whole())


def exchange(transport: Transport, *, within_s: float = 10, repeatable: bool = False) -> Awaitable[HttpResponse]:
    return transport.exchange(transport.encode_request({"host": "h"}, b"{}"), within_s=within_s, repeatable=repeatable)


async def twice(transport: Transport, peer: Peer) -> list[bytes]:
    return [bytes((await exchange(transport)).body), bytes((await exchange(transport)).body)]


async def twice_repeatable(transport: Transport, peer: Peer) -> tuple[bytes, int]:
    await exchange(transport, repeatable=True)
    return bytes((await exchange(transport, repeatable=True)).body), len(peer.requests)


def test_a_connection_is_used_again() -> None:
    async def use(transport: Transport, peer: Peer) -> int:
        await twice(transport, peer)
        return peer.connections

    assert run([OK], use) == 1


def test_a_request_is_sent_as_it_is() -> None:
    async def use(transport: Transport, peer: Peer) -> list[bytes]:
        await transport.exchange(transport.encode_request({"host": "h", "x-a": "1"}, b"{}"), within_s=10)
        return peer.requests

    assert run([OK], use) == [b"POST / HTTP/1.1\r\nhost: h\r\nx-a: 1\r\ncontent-length: 2\r\n\r\n{}"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", id="said"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", id="http-1.0"),
    ],
)
def test_a_connection_that_the_peer_gives_up_is_not_used_again(answer: bytes) -> None:
    async def use(transport: Transport, peer: Peer) -> int:
        await twice(transport, peer)
        return peer.connections

    assert run([answer], use) == 2


def test_no_more_connections_than_allowed() -> None:
    async def use(transport: Transport, peer: Peer) -> tuple[int, int]:
        answers = await asyncio.gather(*(exchange(transport) for _ in range(20)))
        return peer.connections, len(answers)

    assert run([OK], use, connections=3) == (3, 20)


def test_an_idle_connection_that_the_peer_closed_is_replaced() -> None:
    async def use(transport: Transport, peer: Peer) -> tuple[bytes, int]:
        await exchange(transport)
        peer.writers[0].close()
        await peer.writers[0].wait_closed()
        await asyncio.sleep(0)
        return bytes((await exchange(transport, repeatable=True)).body), peer.connections

    assert run([OK], use) == (b"ok", 2)


def test_what_is_repeatable_is_sent_again_when_a_kept_connection_breaks() -> None:
    assert run([OK, CLOSE, OK], twice_repeatable) == (b"ok", 3)


def test_what_is_not_repeatable_is_not_sent_again() -> None:
    async def use(transport: Transport, peer: Peer) -> int:
        await exchange(transport)
        with pytest.raises(ConnectionError):
            await exchange(transport)
        return len(peer.requests)

    assert run([OK, CLOSE, OK], use) == 2


def test_an_answer_that_had_begun_is_not_asked_for_again() -> None:
    """The peer breaks the second answer off: it has done what it was asked."""

    async def use(transport: Transport, peer: Peer) -> int:
        await exchange(transport)
        peer.go.clear()
        peer.asked.clear()
        asked = asyncio.ensure_future(exchange(transport, repeatable=True))
        await peer.asked.wait()
        peer.writers[0].write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\no")
        peer.writers[0].close()
        with pytest.raises(ConnectionError):
            await asked
        peer.go.set()
        return len(peer.requests)

    assert run([OK, SILENCE], use) == 2


def test_a_new_connection_that_breaks_is_not_tried_again() -> None:
    async def use(transport: Transport, peer: Peer) -> int:
        with pytest.raises(ConnectionError):
            await exchange(transport, repeatable=True)
        return len(peer.requests)

    assert run([CLOSE, OK], use) == 1


def test_an_answer_that_is_late_is_a_time_out_and_never_someone_elses() -> None:
    async def use(transport: Transport, peer: Peer) -> tuple[bytes, int]:
        with pytest.raises(TimeoutError):
            await exchange(transport, within_s=0.05)
        return bytes((await exchange(transport)).body), peer.connections

    assert run([SILENCE, OK], use) == (b"ok", 2)


def test_a_cancelled_exchange_takes_its_connection_along() -> None:
    async def use(transport: Transport, peer: Peer) -> tuple[bytes, int]:
        asked = asyncio.ensure_future(exchange(transport))
        await peer.asked.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        return bytes((await exchange(transport)).body), peer.connections

    assert run([SILENCE, OK], use) == (b"ok", 2)


def test_closing_awaits_what_is_under_way_and_takes_no_more() -> None:
    async def use(transport: Transport, peer: Peer) -> bytes:
        peer.go.clear()
        asked = asyncio.ensure_future(exchange(transport))
        await peer.asked.wait()
        closing = asyncio.ensure_future(transport.close())
        await asyncio.sleep(0)
        with pytest.raises(ConnectionError):
            await exchange(transport)
        assert not closing.done()
        peer.go.set()
        await closing
        return bytes((await asked).body)

    assert run([OK], use) == b"ok"


def test_bytes_that_nobody_asked_for_are_no_answer() -> None:
    async def use(transport: Transport, peer: Peer) -> bool:
        await exchange(transport)
        (idle,) = transport._idle
        idle.get_buffer(-1)[:3] = b"200"
        idle.buffer_updated(3)
        await exchange(transport)
        return peer.connections == 2

    assert run([OK], use)


def test_a_port_where_nobody_listens_is_a_connection_error() -> None:
    async def whole() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(OSError):  # noqa: PT011  its text is the system's
            await exchange(Transport(f"http://127.0.0.1:{port}/", connections=1))

    asyncio.run(whole())


# TLS, and proxies


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For localhost, signed by itself, with its key."""
    x509 = pytest.importorskip("cryptography.x509", reason="makes the certificate: comes with moto")
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415  may be missing here
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415  may be missing here

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


def serving(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_tls_with_an_authority_of_ones_own(certificate: Path) -> None:
    assert run([OK], twice, tls=serving(certificate), ca_bundle=str(certificate)) == [b"ok", b"ok"]


def test_a_certificate_that_nobody_trusts_is_refused(certificate: Path) -> None:
    async def use(transport: Transport, peer: Peer) -> int:
        with pytest.raises(ssl.SSLCertVerificationError):
            await exchange(transport)
        return len(peer.requests)

    assert run([OK], use, tls=serving(certificate)) == 0


class Proxy:
    """Takes CONNECT with `status`, and pipes."""

    def __init__(self, status: int = 200) -> None:
        self.status, self.heads = status, list[bytes]()
        self.pipes: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        writer.write(b"HTTP/1.1 %d -\r\n\r\n" % self.status)
        if self.status == 200:
            host, _, port = head.split(b" ")[1].decode().rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
            self.pipes = {asyncio.ensure_future(_pipe(reader, back)), asyncio.ensure_future(_pipe(there, writer))}
        else:
            writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(4096):
        writer.write(data)
    writer.close()


def by_proxy(certificate: Path, monkeypatch: pytest.MonkeyPatch, proxy: Proxy, use: Use) -> Any:
    async def whole() -> Any:
        peer = Peer([OK])
        server = await asyncio.start_server(peer.serve, "localhost", 0, ssl=serving(certificate))
        between = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        monkeypatch.setenv("HTTPS_PROXY", f"http://us%40er:pass@127.0.0.1:{between.sockets[0].getsockname()[1]}")
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}/"
        transport = Transport(url, connections=2, ca_bundle=str(certificate))
        async with server, between:
            try:
                return await use(transport, peer)
            finally:
                await transport.close()
                await asyncio.gather(*proxy.pipes)

    return asyncio.run(whole())


def test_tls_goes_through_a_proxys_tunnel(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy()
    assert by_proxy(certificate, monkeypatch, proxy, twice) == [b"ok", b"ok"]
    (head,) = proxy.heads
    assert head.startswith(b"CONNECT localhost:")
    assert b"Proxy-Authorization: Basic dXNAZXI6cGFzcw==\r\n" in head


def test_a_proxy_that_refuses_says_so(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(transport: Transport, peer: Peer) -> None:
        with pytest.raises(ConnectionError, match="refuses: 407"):
            await exchange(transport)

    by_proxy(certificate, monkeypatch, Proxy(407), use)


def test_a_proxy_is_asked_for_a_plain_endpoint_by_its_whole_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://user:pass@proxy:3128")
    route = route_to("http://emulator:4566/")
    assert (route.proxy_host, route.proxy_port, route.target) == ("proxy", 3128, "http://emulator:4566/")
    assert route.proxy_authorization == "Basic dXNlcjpwYXNz"
    assert not route.needs_tunnel


def test_no_proxy_goes_round_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "vpce.amazonaws.com")
    assert route_to("https://sqs.eu-west-1.amazonaws.com/").needs_tunnel
    assert route_to("https://x.sqs.eu-west-1.vpce.amazonaws.com/").proxy_host is None


@pytest.mark.parametrize("scheme", ["https", "socks5"])
def test_a_proxy_of_another_kind_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setenv("https_proxy", f"{scheme}://user:hidden@proxy:3128")
    with pytest.raises(ValueError, match="only http://") as found:
        route_to("https://sqs.eu-west-1.amazonaws.com/")
    assert "hidden" not in str(found.value)


def test_what_is_no_endpoint_is_refused() -> None:
    with pytest.raises(ValueError, match="no http or https URL"):
        route_to("ftp://host/")


# The reader


def fed(pieces: Sequence[bytes], *, limit: int = 10_000, ends: bool = False) -> HttpResponse | None:
    reading = ResponseParser(limit)
    reading.begin()
    answer = None
    for piece in filter(None, pieces):
        assert answer is None
        buffer = bytearray(piece)  # which is the next connection's, afterwards
        answer = reading.feed(memoryview(buffer))
        buffer[:] = b"?" * len(buffer)
    return reading.end() if ends and answer is None else answer


def chunked(body: bytes, sizes: Sequence[int]) -> bytes:
    parts, at = [], 0
    for size in [*sizes, len(body)]:
        if part := body[at : at + size]:
            parts.append(b"%x;extension=1\r\n%s\r\n" % (len(part), part))
        at += size
    return b"".join(parts) + b"0\r\ntrailer: 1\r\n\r\n"


@given(
    body=st.binary(max_size=400),
    sizes=st.lists(st.integers(1, 100), max_size=8),
    how=st.sampled_from(["length", "chunks", "close"]),
    interim=st.booleans(),
    cuts=st.lists(st.integers(0, 900), max_size=12),
    times=st.sampled_from([1, 300]),  # 300: beyond what is read at once
)
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(
    *, body: bytes, sizes: list[int], how: str, interim: bool, cuts: list[int], times: int
) -> None:
    body *= times
    head = b"HTTP/1.1 200 OK\r\nX-Amzn-RequestId:  abc \r\n"
    whole = {
        "length": head + b"content-length: %d\r\n\r\n" % len(body) + body,
        "chunks": head + b"Transfer-Encoding: Chunked\r\n\r\n" + chunked(body, sizes),
        "close": head + b"\r\n" + body,
    }[how]
    whole = b"HTTP/1.1 100 Continue\r\n\r\n" * interim + whole
    places = [0, *sorted(min(cut * times, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[low:high] for low, high in pairwise(places)]
    answer = fed(pieces, limit=1_000_000, ends=how == "close")
    assert answer is not None
    assert (answer.status, answer.body, answer.headers["x-amzn-requestid"]) == (200, body, "abc")


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", id="no-http"),
        pytest.param(b"HTTP/2 200\r\n\r\n", id="http-2"),
        pytest.param(b"HTTP/1.1 abc\r\n\r\n", id="no-status"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", id="negative"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", id="two-lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 10001\r\n\r\n", id="too-long"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 10_001, id="too-long-until-the-end"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2712\r\n" + b"x" * 10_001, id="too-long-chunk"
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", id="negative-chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc", id="chunk-without-end"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 200, id="chunk-without-size"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", id="more-than-said"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, id="endless-head"),
    ],
)
def test_what_is_no_answer_is_refused(said: bytes) -> None:
    with pytest.raises(ConnectionError):
        fed([said])


def test_an_answer_that_breaks_off_is_none() -> None:
    assert fed([b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"], ends=True) is None
    assert fed([b"HTTP/1.1 200 OK\r\nContent-Le"], ends=True) is None


def test_an_answer_without_a_body_needs_no_length() -> None:
    assert fed([b"HTTP/1.1 204 -\r\n\r\n"]) == HttpResponse(204, [], b"")


def test_nothing_is_taken_for_a_large_answer_before_it_comes() -> None:
    reading = ResponseParser(10**9)
    reading.begin()
    tracemalloc.start()
    try:
        reading.feed(memoryview(b"HTTP/1.1 200 OK\r\nContent-Length: 500000000\r\n\r\n" + b"x" * 1000))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert reading.unread_body_bytes == 500_000_000


def test_one_answer_follows_another() -> None:
    reading = ResponseParser()
    for body in (b"a", b"", b"bb" * 100_000, b"c"):
        reading.begin()
        piece = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        answer = reading.feed(memoryview(piece))
        assert answer is not None
        assert answer.body == body
        assert reading.keeps


def test_an_answer_in_another_protocol_is_none() -> None:
    with pytest.raises(ConnectionError):
        fed([b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"])


def test_small_chunks_are_no_endless_head() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = fed([head, *[b"8\r\n01234567\r\n"] * 100_000, b"0\r\n\r\n"], limit=10**6)
    assert answer is not None
    assert answer.body == b"01234567" * 100_000


LARGE = b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 9_000_000


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, pytest.param("uvloop", id="uvloop")])
def test_a_large_answer_is_read_once_there_is_room_for_it(loop: Any) -> None:
    factory = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else loop

    async def use(transport: Transport, peer: Peer) -> tuple[int, int, bytes]:
        asked: list[tuple[int, Callable[[], None]]] = []
        came = asyncio.Event()

        def room(size: int, go_on: Callable[[], None]) -> None:
            asked.append((size, go_on))
            came.set()

        request = transport.encode_request({"host": "h"}, b"{}")
        answering = asyncio.ensure_future(transport.exchange(request, within_s=10, room=room))
        await came.wait()
        waited = await asyncio.wait([answering], timeout=0.2)
        assert not waited[0]
        [(size, go_on)] = asked
        go_on()
        large = await answering
        return size, len(large.body), bytes((await exchange(transport)).body)

    assert run([LARGE, OK], use, loop=factory) == (9_000_000, 9_000_000, b"ok")
