"""Reads new lines of a Lambda function's log from CloudWatch Logs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sluice.aws.clients import calls

# Lines may appear this much later than their time: AWS accepts requests whose clock is wrong by five minutes.
LATE_MS = 300_000


class LogLine(NamedTuple):
    """A log line with its time in milliseconds since the epoch."""

    at_ms: int
    text: str


@dataclass(slots=True)
class FunctionLogs:
    """Reads new lines of a function's log group, from time `since_ms` on. `client` is boto3's `logs` client."""

    client: Any
    log_group: str
    since_ms: int
    _yielded: dict[object, int] = field(default_factory=dict)  # the times of lines already yielded, by line id
    _next_page: Mapping[str, str] = field(default_factory=dict)  # the token of the page where the last call stopped

    def read_new_lines(
        self, word: str, *, now_ms: int, may_go_on: Callable[[], bool] = lambda: True
    ) -> Iterator[LogLine]:
        """Yield lines that contain `word` and that no earlier call yielded, in order of time. Raises `CallFailed`.

        CloudWatch Logs searches about a mebibyte per request. Further requests are made while `may_go_on` returns true.
        The next call continues where this call stopped.
        """
        is_allowed = True
        while is_allowed:
            # The token is cleared first. If the request fails, as with an expired token, the next call begins anew.
            next_page, self._next_page = self._next_page, {}
            with calls("FilterLogEvents"):
                page = self.client.filter_log_events(
                    logGroupName=self.log_group, startTime=self.since_ms, filterPattern=f'"{word}"', **next_page
                )
            for event in page["events"]:
                at_ms: int = event["timestamp"]
                # The embedded cloud (AWS emulator) does not return event ids.
                line = event.get("eventId") or (event["logStreamName"], at_ms, event["message"])
                if line not in self._yielded:
                    self._yielded[line] = at_ms
                    yield LogLine(at_ms, event["message"])
            if "nextToken" not in page:
                self.since_ms = max(self.since_ms, now_ms - LATE_MS)
                self._yielded = {line: at_ms for line, at_ms in self._yielded.items() if at_ms >= self.since_ms}
                return
            self._next_page = {"nextToken": page["nextToken"]}
            is_allowed = may_go_on()
