"""ULIDs: ids that sort by time, 26 characters of Crockford's base 32. Pure."""

import hashlib
import re

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_CHARACTERS = 26
_TIME_BITS = 48
_REST_BITS = 80
_ULID = re.compile(rf"[0-7][{_ALPHABET}]{{{_CHARACTERS - 1}}}")


def is_ulid(text: str) -> bool:
    """Whether the text is a ULID, in capitals."""
    return _ULID.fullmatch(text) is not None


def ulid_of(message_id: str, *, sent_at_ms: int) -> str:
    """The ULID of a message as SQS knows it: the same each time that the message is received.

    So a retry sends the same ids, and a FIFO queue suppresses it.
    """
    rest = hashlib.sha256(message_id.encode()).digest()[: _REST_BITS // 8]
    number = (sent_at_ms % (1 << _TIME_BITS)) << _REST_BITS | int.from_bytes(rest, "big")
    return "".join(_ALPHABET[number >> 5 * place & 31] for place in reversed(range(_CHARACTERS)))
