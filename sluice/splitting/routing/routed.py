"""Writes and reads the splitter's log lines about messages routed to sessions. Pure.

Log lines have ids, keys and modes, but no content of messages and no queue URLs. Messages that went only to the
deployed consumer aren't logged.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from sluice.codec import Struct, convert, decode
from sluice.errors import Malformed
from sluice.splitting.filters.values import Mode

EVENT = "MessagesRouted"  # The splitter's log lines have this value in the field `message`.
MESSAGES_A_LINE = 50  # So many ids take about 2 KB; CloudWatch accepts lines of up to 256 KB.


class Routed(Struct, frozen=True, kw_only=True):
    """The messages routed to one session. `messages` are the message ids in the split queue's source queue."""

    session: str
    key: str
    mode: Mode
    messages: tuple[str, ...]


class RoutedMessage(Struct, frozen=True, kw_only=True):
    """A message that was routed to a session, as commands show it."""

    at_ms: int
    queue: str
    session: str
    key: str
    mode: Mode
    message: str


def format_lines(routed: Iterable[Routed]) -> Iterator[list[dict[str, Any]]]:
    """Distribute a batch's messages over the fewest possible log lines. Yields the `routed` field of each line."""
    line: list[dict[str, Any]] = []
    room = MESSAGES_A_LINE
    for share in routed:
        left = share.messages
        while left:
            ids, left = left[:room], left[room:]
            line.append({"session": share.session, "key": share.key, "mode": share.mode.value, "messages": ids})
            room -= len(ids)
            if not room:
                yield line
                line, room = [], MESSAGES_A_LINE
    if line:
        yield line


def parse_routed(text: str, *, at_ms: int) -> Iterator[RoutedMessage]:
    """Yield the routed messages of a log line. A line about something else yields no messages."""
    try:
        document = decode(text, dict[str, Any], of="line")
        if document.get("message") != EVENT:
            return
        queue, routed = str(document["queue"]), convert(document["routed"], tuple[Routed, ...], of="line")
    except (Malformed, KeyError):
        return
    for share in routed:
        for message in share.messages:
            yield RoutedMessage(
                at_ms=at_ms, queue=queue, session=share.session, key=share.key, mode=share.mode, message=message
            )
