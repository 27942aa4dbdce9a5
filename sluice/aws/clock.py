"""The wall clock, and ids that nobody else draws: what the shells get as arguments."""

import time
import uuid


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def new_id() -> str:
    """32 hex characters."""
    return uuid.uuid4().hex
