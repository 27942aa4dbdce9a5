"""The codec for stored values and for messages between sites and functions. Pure.

Values are `Struct`s: frozen, with typed fields, and unknown fields are refused. Limits are part of a field's type
(`Annotated[str, Meta(max_length=256)]`), and a tag distinguishes variants. Each stored kind has a `Format`: its kind
and version are read first, so that an older program stops with an error instead of guessing.

msgspec is used because it imports in a third of cattrs' time, which matters for cold starts.
"""

import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar, cast

import msgspec

from sluice.errors import BadConfiguration, BadSnapshot, Malformed

# This limit of decompressed JSON keeps a damaged or hostile snapshot from filling a function's memory.
MAX_BYTES = 256 * 1024 * 1024
MAX_CHECKED_BYTES = 16 * 1024 * 1024  # A larger value may not fit into a function's memory twice.

T = TypeVar("T")


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of values that are stored or sent. `msgspec.structs.replace` makes a changed copy.

    Subclasses repeat `frozen=True, kw_only=True`, because type checkers don't inherit these options.
    """


def pick_shared_fields(value: object, type_: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the value's fields that the other type also has, by name."""
    return {name: getattr(value, name) for name in type_.__struct_fields__ if hasattr(value, name)}


_ENCODER = msgspec.json.Encoder(order="deterministic")  # Equal values give equal bytes.


@cache
def _get_decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


def encode(value: object) -> bytes:
    """Encode the value as JSON; equal values give equal bytes."""
    return _ENCODER.encode(value)


def decode(text: bytes | str | msgspec.Raw, type_: type[T], *, of: str) -> T:
    """Decode JSON into a value of the type. Raises `Malformed`, which names the document `of` and the faulty place.

    A place looks like `$.links[0].name`.
    """
    decoder = _get_decoder(cast("Any", type_))  # The cast satisfies the cache's type: generic types are hashable.
    try:
        value: T = decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Malformed(f"{of}: {error}") from None
    except RecursionError:
        # No value's type is nested this deeply, so the limit refuses no valid text.
        raise Malformed(f"{of}: nested too deep") from None
    return value


def convert(document: object, type_: type[T], *, of: str) -> T:
    """Convert an already parsed JSON document into a value of the type. Raises `Malformed`, as `decode` does."""
    try:
        return msgspec.convert(document, type_)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise Malformed(f"{of}: {error}") from None
    except RecursionError:
        raise Malformed(f"{of}: nested too deep") from None


def to_document(value: object) -> dict[str, Any]:
    """Convert a struct to the dicts, lists, strings and numbers of its JSON."""
    document: dict[str, Any] = msgspec.to_builtins(value)
    return document


class _Envelope(Struct, frozen=True, kw_only=True):
    """The stored form of a value. `value` stays raw JSON, because the version is checked before it is decoded."""

    kind: str
    version: int
    value: msgspec.Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Generic[T]):
    """A kind of stored value, at the version that this program writes and reads. `max_bytes` overrides `MAX_BYTES`."""

    kind: str
    version: int
    type: type[T]
    max_bytes: int | None = None

    def text(self, value: T) -> str:
        """Encode the value as JSON text; equal values give equal texts."""
        return self._encode_json(value).decode()

    def from_text(self, text: str | bytes) -> T:
        """Decode JSON text. Raises `BadSnapshot` for another kind or version, or if the text is invalid."""
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
        """Encode and compress the value; equal values give equal bytes."""
        return zlib.compress(self._encode_json(value))

    def pack_checked(self, value: T) -> bytes:
        """Pack a value for storage, and check it. Raises `BadConfiguration` if a reader would refuse it."""
        text = self._encode_json(value)
        try:
            if len(text) <= MAX_CHECKED_BYTES:
                self.from_text(text)
        except BadSnapshot as error:
            raise BadConfiguration(f"{self.kind} isn't saved, because no reader would take it: {error}") from error
        return zlib.compress(text)

    def unpack(self, packed: bytes) -> T:
        """Decode packed bytes. Raises `BadSnapshot`, also if the decompressed text is larger than the limit."""
        return self.unpack_first(packed)[0]

    def unpack_first(self, packed: bytes) -> tuple[T, bytes]:
        """Decode the packed value at the beginning. Returns it and the remaining bytes. Raises as `unpack` does."""
        inflate = zlib.decompressobj()
        try:
            text = inflate.decompress(packed, self.max_bytes or MAX_BYTES)
        except zlib.error as error:
            raise BadSnapshot(f"{self.kind}: {error}") from None
        if not inflate.eof:
            raise BadSnapshot(f"{self.kind}: cut short, or too large")
        return self.from_text(text), inflate.unused_data

    def _encode_json(self, value: T) -> bytes:
        return encode(_Envelope(kind=self.kind, version=self.version, value=msgspec.Raw(encode(value))))
