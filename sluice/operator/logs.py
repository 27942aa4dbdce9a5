"""What a function says, from CloudWatch Logs, as it comes in."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sluice.aws.clients import calls

# How long after it was said a line is still looked for: CloudWatch Logs has it within seconds, and AWS refuses requests
# by a clock that is more than five minutes off.
LATE_MS = 300_000


class LogLine(NamedTuple):
    """A line, and when it was said."""

    at_ms: int
    text: str


@dataclass(slots=True)
class FunctionLogs:
    """A function's log group, from some time on. `client` is boto3's for `logs`."""

    client: Any
    log_group: str
    since_ms: int
    _given: dict[object, int] = field(default_factory=dict)  # when a line was said that isn't to be given again
    _goes_on: Mapping[str, str] = field(default_factory=dict)  # where the last call was not allowed to

    def new_lines(self, word: str, *, now_ms: int, may_go_on: Callable[[], bool] = lambda: True) -> Iterator[LogLine]:
        """Yield the lines with this word that weren't there at the last call, in order of time.

        There is a request for each mebibyte or so that is looked through, after the first one if it `may_go_on`; the
        next call goes on where this one ends. Raises `CallFailed`.
        """
        is_allowed = True
        while is_allowed:
            page = self._page(word)
            for event in page["events"]:
                at_ms: int = event["timestamp"]
                # The embedded cloud gives lines no ids.
                line = event.get("eventId") or (event["logStreamName"], at_ms, event["message"])
                if line not in self._given:
                    self._given[line] = at_ms
                    yield LogLine(at_ms, event["message"])
            if "nextToken" not in page:
                self.since_ms = max(self.since_ms, now_ms - LATE_MS)
                self._given = {line: at_ms for line, at_ms in self._given.items() if at_ms >= self.since_ms}
                return
            self._goes_on = {"nextToken": page["nextToken"]}
            is_allowed = may_go_on()

    def _page(self, word: str) -> Any:
        """Ask for the next page; after one that is refused, as by a token that is too old, for the first one again."""
        goes_on, self._goes_on = self._goes_on, {}
        with calls("FilterLogEvents"):
            return self.client.filter_log_events(
                logGroupName=self.log_group, startTime=self.since_ms, filterPattern=f'"{word}"', **goes_on
            )
