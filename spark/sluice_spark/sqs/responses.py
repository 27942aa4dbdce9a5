"""Parses HTTP/1.1 responses with llhttp from pieces of any size, and enforces limits.

No I/O: the connections are transport's.
"""

from collections.abc import Mapping, Sequence

import httptools
import msgspec

HEAD_LIMIT = 64 * 2**10  # beside a body: head, chunks' sizes and trailers
ANSWER_LIMIT = 64 * 2**20  # ten messages of 1 MiB, each byte escaped as JSON does at worst
BUFFER_BYTES = 64 * 2**10  # are read at once: ten messages of some KiB fit
HTTP_OK = 200


class HttpResponse(msgspec.Struct, frozen=True):
    """An HTTP response. `fields` are the headers as received."""

    status: int
    fields: Sequence[tuple[bytes, bytes]]
    body: bytes | memoryview  # a view where it came in pieces: of a buffer that is nobody else's

    @property
    def headers(self) -> Mapping[str, str]:
        """The first of each name, in lower case; read only where they are asked for, which is of few answers."""
        return {
            name.decode("latin-1").lower(): value.decode("latin-1").strip() for name, value in reversed(self.fields)
        }


class ResponseParser:
    """Parses one response after another. Raises ConnectionError for invalid HTTP/1.1 and for bodies beyond `limit`.

    Public names that begin with `on_` are httptools' calls.
    """

    def __init__(self, limit: int = ANSWER_LIMIT) -> None:
        self._limit = limit
        self.begun = False
        self.keeps = False  # the peer keeps the connection open after this answer
        self._parser: httptools.HttpResponseParser | None = None
        self._bodiless = self._whole = False
        self._forget()

    def begin(self, *, bodiless: bool = False) -> None:
        """Begin the next answer; `bodiless`: it has no body whatever its head says."""
        if not (self._whole and self.keeps) or self._bodiless:
            self._parser = httptools.HttpResponseParser(self)
        self.begun, self.keeps, self._bodiless, self._whole = False, True, bodiless, False
        self._beside = 0
        self._forget()

    def _forget(self) -> None:
        self._fields: list[tuple[bytes, bytes]] = []
        self._status: int | None = None  # once the head is read
        self._length: int | None = None
        self._chunked = False
        self._body: bytes | bytearray = b""
        self._filled = 0

    @property
    def to_come(self) -> int:
        """How long the body is that has begun, if its head said so and it is more than what is read at once."""
        return self._length if self._length is not None and self._length > BUFFER_BYTES else 0

    def feed(self, piece: memoryview) -> HttpResponse | None:
        """Parse the next bytes, whose buffer may be reused afterwards. Returns the response if they complete it."""
        self.begun = True
        if self._parser is None:
            raise ConnectionError("an answer that nobody asked for")
        before = self._filled
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as error:
            raise ConnectionError("an answer in another protocol") from error
        except httptools.HttpParserError as error:
            raise ConnectionError(f"no HTTP/1 answer: {error.__context__ or error}") from error
        if self._whole:
            return self._answer()
        self._beside += len(piece) - (self._filled - before)
        if self._beside > HEAD_LIMIT + self._filled:
            raise ConnectionError(f"more than {HEAD_LIMIT} bytes beside the body")
        return None

    def end(self) -> HttpResponse | None:
        """Handle the end of the connection. Returns the response if the end of the connection completes it."""
        self.keeps = False
        if self._status is None or self._chunked or self._length is not None:
            return None
        return self._answer()

    def _answer(self) -> HttpResponse:
        body = memoryview(self._body) if isinstance(self._body, bytearray) else self._body
        answer = HttpResponse(self._status or 0, self._fields, body)
        self._body = b""
        return answer

    def on_message_begin(self) -> None:
        """Raise where an answer comes after the one that was asked for."""
        if self._whole:
            raise ConnectionError("more bytes than the answer's length")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header, or a trailer, which says nothing to us."""
        if self._status is None:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Look at what the head says of the body."""
        assert self._parser is not None  # noqa: S101  tells mypy who calls
        status = self._parser.get_status_code()
        if status < HTTP_OK:
            return
        self._status, self.keeps = status, self._parser.should_keep_alive()
        for name, value in self._fields:
            if len(name) == len(b"content-length") and name.lower() == b"content-length":
                self._length = int(value)
            elif len(name) == len(b"transfer-encoding") and name.lower() == b"transfer-encoding":
                self._chunked = True
        if self._bodiless:
            self._whole = True
        elif self._length is not None and self._length > self._limit:
            raise ConnectionError(f"an answer of {self._length} bytes, more than {self._limit}")

    def on_body(self, piece: bytes) -> None:
        """Keep a piece: the first as it is, as it may be all, and there may be no room yet for more."""
        size = self._filled + len(piece)
        if size > self._limit:
            raise ConnectionError(f"an answer of more than {self._limit} bytes")
        if not self._filled:
            self._body = piece
        else:
            if not isinstance(self._body, bytearray):
                first, self._body = self._body, bytearray(self._length or len(self._body))
                self._body[: self._filled] = first
            self._body[self._filled : size] = piece
        self._filled = size

    def on_message_complete(self) -> None:
        """Go on after 100 Continue and the like, which come before the answer."""
        if self._status is None:
            self._forget()
        else:
            self._whole = True
