"""A session's filters by queue, with their limits, and the shares that routing uses. Pure. `files` parses filters."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sluice.codec import Struct

EVERY_QUEUE = "*"
MAX_QUEUES = 100  # A request for a session can name at most this many queues.
MAX_SESSIONS = 1_000
MAX_NAMED_ATTRIBUTES = 64
MAX_LINE_PATTERNS = 64
MAX_PATTERN_CHARACTERS = 4_096
MAX_PROGRAM_CHARACTERS = 16_384

Pattern = Annotated[str, Meta(max_length=MAX_PATTERN_CHARACTERS)]
Attribute = tuple[str, Pattern]  # an attribute's name and pattern
LinePatterns = Annotated[tuple[Pattern, ...], Meta(min_length=1, max_length=MAX_LINE_PATTERNS)]


class Mode(StrEnum):
    """A session's mode: it takes matching messages from the deployed consumer, or gets copies of these messages."""

    STEAL = "steal"
    MIRROR = "mirror"


class Filter(Struct, frozen=True, kw_only=True):
    """Conditions on a message: each named attribute matches its pattern, and the jq program, if any, returns true.

    Further conditions are patterns on the lines `name: value` of its attributes: all of `all_of`, and one of `any_of`.
    Unset fields aren't stored, so filters from before these fields existed are unchanged. Hashable, so that equal
    filters of several sessions are evaluated once. `attributes` are in the order of the file.
    """

    attributes: Annotated[tuple[Attribute, ...], Meta(max_length=MAX_NAMED_ATTRIBUTES)] = ()
    all_of: LinePatterns | UnsetType = UNSET
    any_of: LinePatterns | UnsetType = UNSET
    jq: Annotated[str, Meta(max_length=MAX_PROGRAM_CHARACTERS)] | None = None

    @property
    def matches_nothing(self) -> bool:
        """Return whether the filter is empty, so that the session gets no message of the queue."""
        return not self.attributes and not self.lines and self.jq is None

    @property
    def description(self) -> str:
        """Describe the conditions in one line."""
        parts = [f"{name} =~ {pattern}" for name, pattern in self.attributes]
        parts += [f"line =~ {' or '.join(patterns)}" for patterns in self.lines]
        return ", ".join(parts if self.jq is None else [*parts, f"jq {self.jq}"]) or "nothing"

    @property
    def lines(self) -> tuple[tuple[str, ...], ...]:
        """Return sets of patterns on lines. At least one pattern of each set must be found in one of the lines."""
        pattern_sets = () if self.all_of is UNSET else tuple((pattern,) for pattern in self.all_of)
        return pattern_sets if self.any_of is UNSET else (*pattern_sets, self.any_of)


class QueueFilter(Struct, frozen=True, kw_only=True):
    """A session's filter and mode for one queue."""

    filter: Filter
    mode: Mode = Mode.STEAL


QueueFilters = Mapping[str, QueueFilter]  # Keys are queue ids or EVERY_QUEUE.


def select_filter(filters: QueueFilters, queue_id: str) -> QueueFilter | None:
    """Find the session's filter for a queue. An explicit id takes precedence over `*`. Returns None without either."""
    return filters.get(queue_id) or filters.get(EVERY_QUEUE)


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One session's filter for one split queue. `key` is the session's key, an attribute of the session's messages.

    `since_ms` is the time from which messages are routed to the session.
    """

    session_id: str
    key: str
    started_at_ms: int
    since_ms: int = 0
    filter: Filter
    mode: Mode = Mode.STEAL

    @property
    def order(self) -> tuple[int, str]:
        """Return the sort key that puts the session that started first in front."""
        return self.started_at_ms, self.session_id
