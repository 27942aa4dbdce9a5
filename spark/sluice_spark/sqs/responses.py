"""Parses HTTP/1.1 responses with llhttp, from pieces of any size, and enforces limits.

This module does no I/O: `transport` owns the connections.
"""

from collections.abc import Mapping, Sequence

import httptools
import msgspec

HEAD_LIMIT = 64 * 2**10  # maximum bytes besides the body: head, chunk sizes and trailers
ANSWER_LIMIT = 64 * 2**20  # maximum bytes of a body: ten messages of 1 MiB, every byte escaped in JSON
BUFFER_BYTES = 64 * 2**10  # bytes read at once, enough for ten messages of a few KiB
HTTP_OK = 200


class HttpResponse(msgspec.Struct, frozen=True):
    """An HTTP response. `fields` are the headers as received."""

    status: int
    fields: Sequence[tuple[bytes, bytes]]
    body: bytes | memoryview  # a memoryview if the body arrived in pieces

    @property
    def headers(self) -> Mapping[str, str]:
        """The first value of each header, by name in lower case. Computed on access, as few callers need headers."""
        return {
            name.decode("latin-1").lower(): value.decode("latin-1").strip() for name, value in reversed(self.fields)
        }


class ResponseParser:
    """Parses one response after another. Raises ConnectionError for invalid HTTP/1.1 and bodies of over `limit` bytes.

    Package httptools calls the methods that begin with `on_`.
    """

    def __init__(self, limit: int = ANSWER_LIMIT) -> None:
        self._limit = limit
        self.begun = False
        self.keeps = False  # Does the peer keep the connection open?
        self._parser: httptools.HttpResponseParser | None = None
        self._bodiless = self._whole = False
        self._reset()

    def begin(self, *, bodiless: bool = False) -> None:
        """Begin the next response. A `bodiless` response has no body, even if its headers say so."""
        if not (self._whole and self.keeps) or self._bodiless:
            self._parser = httptools.HttpResponseParser(self)
        self.begun, self.keeps, self._bodiless, self._whole = False, True, bodiless, False
        self._beside = 0
        self._reset()

    def _reset(self) -> None:
        self._fields: list[tuple[bytes, bytes]] = []
        self._status: int | None = None  # None until the headers are read
        self._length: int | None = None
        self._chunked = False
        self._body: bytes | bytearray = b""
        self._filled = 0

    @property
    def unread_body_bytes(self) -> int:
        """The bytes of a body that has begun and is larger than one read; 0 for a smaller body or an unknown length."""
        return self._length if self._length is not None and self._length > BUFFER_BYTES else 0

    def feed(self, piece: memoryview) -> HttpResponse | None:
        """Parse the next bytes, whose buffer can be reused afterwards. Returns the response if it is complete now."""
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
            return self._build_response()
        self._beside += len(piece) - (self._filled - before)
        if self._beside > HEAD_LIMIT + self._filled:
            raise ConnectionError(f"more than {HEAD_LIMIT} bytes beside the body")
        return None

    def end(self) -> HttpResponse | None:
        """Handle the end of the connection. Returns the response if the connection's end is the end of its body."""
        self.keeps = False
        if self._status is None or self._chunked or self._length is not None:
            return None
        return self._build_response()

    def _build_response(self) -> HttpResponse:
        body = memoryview(self._body) if isinstance(self._body, bytearray) else self._body
        answer = HttpResponse(self._status or 0, self._fields, body)
        self._body = b""
        return answer

    def on_message_begin(self) -> None:
        """Raise ConnectionError if a second response follows the expected one."""
        if self._whole:
            raise ConnectionError("more bytes than the answer's length")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers, which follow the body, are ignored."""
        if self._status is None:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Find in the headers how the body ends, and check the body's length."""
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
        """Store a piece of the body. The first piece, which can be the whole body, isn't copied."""
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
        """Finish the response. Discards an interim response such as 100 Continue."""
        if self._status is None:
            self._reset()
        else:
            self._whole = True
