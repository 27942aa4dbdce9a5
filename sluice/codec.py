"""One codec for what is stored and for what sites and functions tell each other. Pure.

Values are `Struct`s: frozen, each field of its own type, unknown fields refused. Limits stand with the field
(`Annotated[str, Meta(max_length=256)]`), variants are told apart by their tag. A stored kind is a `Format`: whoever
reads it learns its kind and version first, so that an older program stops short instead of guessing.

msgspec, as the cold start decides: it imports in a third of cattrs' time, and what it needs botocore has loaded anyway.
"""

import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar, cast

import msgspec

from sluice.errors import BadSnapshot, Malformed

MAX_BYTES = 256 * 1024 * 1024  # of JSON: no damaged or hostile snapshot takes all of a function's memory

T = TypeVar("T")


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that is stored or sent. It is changed by `msgspec.structs.replace`.

    A subclass says `frozen=True, kw_only=True` once more: type checkers don't inherit them.
    """


def shared_fields(value: object, type_: type[msgspec.Struct]) -> dict[str, Any]:
    """Return those of a value's fields that a type has too, by name."""
    return {name: getattr(value, name) for name in type_.__struct_fields__ if hasattr(value, name)}


_ENCODER = msgspec.json.Encoder(order="deterministic")  # sets and objects in order: equal values give equal bytes


@cache
def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


def encode(value: object) -> bytes:
    """Write the value as JSON; equal values give equal bytes."""
    return _ENCODER.encode(value)


def decode(text: bytes | str | msgspec.Raw, type_: type[T], *, of: str) -> T:
    """Read what `encode` wrote, or what somebody else says of this type.

    Raises `Malformed`, which names `of` and the place in it, such as `$.links[0].name`.
    """
    decoder = _decoder(cast("Any", type_))  # a cache takes what hashes, and a generic type does
    try:
        value: T = decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Malformed(f"{of}: {error}") from None
    except RecursionError:
        # A type has few levels, so such a text is refused by its type too, wherever the stack has room for more.
        raise Malformed(f"{of}: nested too deep") from None
    return value


def convert(document: object, type_: type[T], *, of: str) -> T:
    """Read a value from what a JSON reader has made of it already. Raises `Malformed`, as `decode` does."""
    try:
        return msgspec.convert(document, type_)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise Malformed(f"{of}: {error}") from None
    except RecursionError:
        raise Malformed(f"{of}: nested too deep") from None


def plain(value: object) -> dict[str, Any]:
    """Make a value with fields a document of dicts, lists, texts and numbers, as its JSON has it."""
    document: dict[str, Any] = msgspec.to_builtins(value)
    return document


class _Envelope(Struct, frozen=True, kw_only=True):
    """Before the value is read, its version is: so `value` is kept as it stands."""

    kind: str
    version: int
    value: msgspec.Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Generic[T]):
    """A stored kind, at the version that this program writes and reads. `max_bytes` where less than usual will do."""

    kind: str
    version: int
    type: type[T]
    max_bytes: int | None = None

    def text(self, value: T) -> str:
        """Write the value as a JSON text; equal values give equal texts."""
        return self._json(value).decode()

    def of_text(self, text: str | bytes) -> T:
        """Read what `text` wrote. Raises `BadSnapshot` for another kind or version, and for what doesn't decode."""
        try:
            envelope = decode(text, _Envelope, of=self.kind)
            if (envelope.kind, envelope.version) != (self.kind, self.version):
                raise BadSnapshot(
                    f"{envelope.kind} of version {envelope.version}: this program reads {self.kind} of {self.version}"
                )
            return decode(envelope.value, self.type, of=self.kind)
        except Malformed as error:
            raise BadSnapshot(str(error)) from None

    def pack(self, value: T) -> bytes:
        """Write the value compressed; equal values give equal bytes."""
        return zlib.compress(self._json(value))

    def unpack(self, packed: bytes) -> T:
        """Read what `pack` wrote. Raises `BadSnapshot`, also for what would be over the limit."""
        return self.unpack_first(packed)[0]

    def unpack_first(self, packed: bytes) -> tuple[T, bytes]:
        """Read what `pack` wrote first, and give what follows. Raises `BadSnapshot`, as `unpack` does."""
        inflate = zlib.decompressobj()
        try:
            text = inflate.decompress(packed, self.max_bytes or MAX_BYTES)
        except zlib.error as error:
            raise BadSnapshot(f"{self.kind}: {error}") from None
        if not inflate.eof:
            raise BadSnapshot(f"{self.kind}: cut short, or too large")
        return self.of_text(text), inflate.unused_data

    def _json(self, value: T) -> bytes:
        return encode(_Envelope(kind=self.kind, version=self.version, value=msgspec.Raw(encode(value))))
