"""ULIDs: ids that sort by time, each 26 characters in Crockford's base 32. Pure."""

import hashlib

from ulid_transform import bytes_to_ulid

_TIME_BYTES = 6
_REST_BYTES = 10
ULID = "[0-7][0-9A-HJKMNP-TV-Z]{25}"  # The ULID package is less strict: it accepts any 26 characters.


def derive_ulid(message_id: str, *, sent_at_ms: int) -> str:
    """Derive a ULID from an SQS message id. The result is the same each time SQS delivers the message.

    A retry therefore sends the same ids, and a FIFO queue drops the duplicate.
    """
    time = (sent_at_ms % (1 << 8 * _TIME_BYTES)).to_bytes(_TIME_BYTES, "big")
    return bytes_to_ulid(time + hashlib.sha256(message_id.encode()).digest()[:_REST_BYTES])
