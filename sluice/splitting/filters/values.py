"""What a session asks of each queue, as values with their limits. Pure. How a file says it is in `files`."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from sluice.codec import Struct

EVERY_QUEUE = "*"
MAX_QUEUES = 100  # of one session, as it is asked for
MAX_NAMED_ATTRIBUTES = 64
MAX_PATTERN_CHARACTERS = 4_096
MAX_PROGRAM_CHARACTERS = 16_384

Attribute = tuple[str, Annotated[str, Meta(max_length=MAX_PATTERN_CHARACTERS)]]  # a name and the pattern it must have


class Mode(StrEnum):
    """Whether the session takes the messages that match, or gets copies of them."""

    STEAL = "steal"
    MIRROR = "mirror"


class Filter(Struct, frozen=True, kw_only=True):
    """What a message must have: every named attribute found by its pattern, and jq's yes where there is a program.

    Hashable, so that sessions that ask for the same are asked once. `attributes` are in the order of the file.
    """

    attributes: Annotated[tuple[Attribute, ...], Meta(max_length=MAX_NAMED_ATTRIBUTES)] = ()
    jq: Annotated[str, Meta(max_length=MAX_PROGRAM_CHARACTERS)] | None = None

    @property
    def matches_nothing(self) -> bool:
        """Whether it is empty: the session gets nothing of the queue."""
        return not self.attributes and self.jq is None


class QueueFilter(Struct, frozen=True, kw_only=True):
    """A session's filter and mode for one queue."""

    filter: Filter
    mode: Mode = Mode.STEAL


QueueFilters = Mapping[str, QueueFilter]  # by queue id, or EVERY_QUEUE


def filter_of(filters: QueueFilters, queue_id: str) -> QueueFilter | None:
    """Find the session's filter for a queue: an explicit id wins over `*`. None where the session doesn't name it."""
    return filters.get(queue_id) or filters.get(EVERY_QUEUE)
