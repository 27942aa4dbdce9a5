"""Answers of HTTP/1.1 out of the bytes that come, in whatever pieces. No I/O: the connections are transport's."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

HEAD_LIMIT = 64 * 2**10
ANSWER_LIMIT = 64 * 2**20  # ten messages of 1 MiB, each byte escaped as JSON does at worst
BUFFER_BYTES = 64 * 2**10  # ten messages of some KiB fit
HEAD_END = b"\r\n\r\n"
LINE_END = b"\r\n"
CHUNK_SIZE_LIMIT = 128  # of the line that says a chunk's size, with its extensions
HTTP_OK = 200
BODILESS = {204, 304}
# A head as SQS's usually is: nothing in it says how the body comes but one length
USUAL = re.compile(
    rb"HTTP/1\.1 (\d{3}) [^\r]*"
    rb"(?:\r\n(?!content-length|transfer-encoding|connection)[!-9;-~]+:[^\r\n]*|\r\nconnection: ?keep-alive)*"
    rb"\r\ncontent-length: ?(\d+)"
    rb"(?:\r\n(?!content-length|transfer-encoding|connection)[!-9;-~]+:[^\r\n]*|\r\nconnection: ?keep-alive)*",
    re.IGNORECASE,
)


class HttpAnswer(msgspec.Struct, frozen=True):
    """What came back. `head` is the status line and the headers, as they came."""

    status: int
    head: bytes
    body: bytes | memoryview  # a view where it is large: of a buffer that is nobody else's by then

    @property
    def headers(self) -> Mapping[str, str]:
        """By name in lower case; read only where they are asked for, which on the way of most answers is nowhere."""
        return _headers(self.head)


@dataclass(slots=True)
class AnswerReader:
    """One answer after another out of the bytes that come, in whatever pieces. No I/O.

    `shared`: where bytes come first, the same for all connections of a transport, and so in the processor's cache. An
    answer that isn't whole by then goes on in a buffer of its own. Raises ConnectionError for what is no HTTP/1.1, or
    beyond `limit`.
    """

    shared: bytearray
    limit: int = ANSWER_LIMIT
    begun: bool = False
    keeps: bool = True  # the peer keeps the connection open after this answer
    _buffer: bytearray = field(init=False)
    _filled: int = 0
    _bodiless: bool = False
    _head: "_Head | None" = None
    _chunks: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._buffer = self.shared

    def begin(self, *, bodiless: bool = False) -> None:
        """Begin the next answer; `bodiless`: it has no body whatever its head says."""
        self.begun, self.keeps, self._bodiless = False, True, bodiless
        self._buffer, self._filled, self._head = self.shared, 0, None
        if self._chunks:
            self._chunks = bytearray()

    def room(self) -> memoryview:
        """Where the next bytes go; never empty. They are there until `filled`, for as long as nobody else has room."""
        if self._filled == len(self._buffer):
            self._grow(max(2 * self._filled, self._whole))
        return memoryview(self._buffer)[self._filled :]

    @property
    def to_come(self) -> int:
        """How long the answer is that has begun, if its head said so and it is more than what a connection keeps."""
        return self._whole if self._whole > BUFFER_BYTES else 0

    @property
    def _whole(self) -> int:
        """Bytes of head and body, as far as they are known."""
        head = self._head
        return 0 if head is None or head.length is None else head.start + head.length

    def filled(self, count: int) -> HttpAnswer | None:
        """`count` bytes have come into the room; the answer, if they complete it."""
        answer = self._advanced(count)
        if answer is None and self._buffer is self.shared:
            self._grow(BUFFER_BYTES)
        return answer

    def _advanced(self, count: int) -> HttpAnswer | None:
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

    def ended(self) -> HttpAnswer | None:
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
        self._head = head

    def _body(self, head: "_Head") -> HttpAnswer | None:
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

    def _answer(self, head: "_Head", end: int) -> HttpAnswer:
        body = memoryview(self._buffer)[head.start : end]
        if len(self._buffer) <= BUFFER_BYTES:
            return HttpAnswer(head.status, head.text, bytes(body))
        self._buffer, self._filled = self.shared, 0
        return HttpAnswer(head.status, head.text, body)

    def _dechunked(self, head: "_Head") -> HttpAnswer | None:
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

    def _trailed(self, head: "_Head", line: int) -> HttpAnswer | None:
        """After the last chunk's size, at `line`: trailers, which say nothing to us, and an empty line."""
        end = self._buffer.find(HEAD_END, line, self._filled)
        if end < 0:
            if self._filled - line > HEAD_LIMIT:
                raise ConnectionError(f"trailers of more than {HEAD_LIMIT} bytes")
            return None
        if self._filled > end + len(HEAD_END):
            raise ConnectionError("more bytes than the answer's chunks")
        return HttpAnswer(head.status, head.text, bytes(self._chunks))

    def _drop(self, count: int) -> None:
        if count:
            rest = bytes(memoryview(self._buffer)[count : self._filled])
            self._buffer[: len(rest)] = rest
            self._filled = len(rest)

    def _grow(self, size: int) -> None:
        """Take a new buffer: asyncio still holds a view of the old one."""
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
        """Read a head. Raises ConnectionError for what is no HTTP/1.x."""
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
    """Read the first of each name. Raises ConnectionError for two lengths."""
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
