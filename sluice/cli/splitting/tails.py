"""What was routed to sessions, read from the splitter's log: which part of it is asked for, and how it is shown."""

import re
import time
from collections.abc import Iterator

from sluice.aws.operator.function_logs import FunctionLogs
from sluice.errors import BadConfiguration
from sluice.splitting.routing.routed import EVENT, RoutedMessage, read

SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class BadPeriod(BadConfiguration):
    """A text that is no period of time."""


def seconds_of(period: str) -> int:
    """Read `90s`, `5m`, `2h` or `1d`. Raises `BadPeriod`."""
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", period)
    if found is None:
        raise BadPeriod(f"--since: {period[:80]!r} is no number with s, m, h or d after it, as 5m")
    return int(found[1]) * SECONDS[found[2]]


def new_messages(logs: FunctionLogs, *, session: str | None, queue_id: str | None) -> Iterator[RoutedMessage]:
    """Yield what was routed since the last call: to this session, by its id or key, and of this queue. None is any."""
    for line in logs.new_lines(EVENT, now_ms=int(time.time() * 1_000)):
        for each in read(line.text, at_ms=line.at_ms):
            if session in {None, each.session, each.key} and queue_id in {None, each.queue}:
                yield each


def shown(each: RoutedMessage) -> str:
    """Write a message as a line for people."""
    at = time.strftime("%H:%M:%S", time.localtime(each.at_ms / 1000))
    who = each.session if each.key == each.session else f"{each.session} ({each.key})"
    return f"{at}  {each.queue}  {each.mode:<6}  {who}  {each.message}"
