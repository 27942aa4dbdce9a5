"""Reads the page *Log*: live log lines of a site's functions, with function, level and trace. Masks addresses."""

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.connections import Connection
from sluice.console.readings.shared import try_reading
from sluice.console.sites import CallLimitedSite, Document, Query
from sluice.documents import read_json
from sluice.errors import BadRequest
from sluice.operator.logs import FunctionLogs, LogLine
from sluice.rendezvous.protocol.addresses import mask_addresses
from sluice.stages import add_stage_prefix

FUNCTION_PREFIX = "Sluice"  # Functions' names begin with this word, after the prefix of the stage.
SERVICE_VARIABLE = "POWERTOOLS_SERVICE_NAME"
GROUPS_INTERVAL_S = 600.0
LINES_INTERVAL_S = 3.0
LOOK_BACK_MS = 15 * 60_000
TRACE_LOOK_BACK_MS = 60 * 60_000
STRUCTURED = "level"  # All structured log lines (JSON) of the functions contain this word.
MAX_LINES = 500  # The page shows at most this number of log lines.
MAX_TAILS = 20
MAX_TRACE = 200  # A trace id has at most this number of characters.
MAX_FIELD = 4_000  # Longer fields of a log line are cut to this number of characters.
STANDARD_FIELDS = frozenset({"level", "location", "message", "timestamp", "service"})


@dataclass(slots=True)
class LogTail:
    """The last log lines that contain a given word, from all functions."""

    since_ms: int
    lines: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_LINES))
    logs: dict[str, FunctionLogs] = field(default_factory=dict)

    def read_new_lines(self, service: str, logs: FunctionLogs, word: str, *, may_go_on: Callable[[], bool]) -> None:
        """Read a function's new log lines that contain `word`, with further requests while `may_go_on` returns true."""
        for line in logs.read_new_lines(word, now_ms=now_ms(), may_go_on=may_go_on):
            self.lines.append(build_line_document(service, line))


@dataclass(slots=True)
class LogTails:
    """The log tails of a site, by the word that their lines contain. Keeps the newest `MAX_TAILS` tails."""

    tails_by_word: dict[str, LogTail] = field(default_factory=dict)

    def get_tail(self, word: str, *, since_ms: int) -> LogTail:
        """Return the tail of lines that contain a word. A new tail begins at `since_ms`."""
        if word not in self.tails_by_word:
            while len(self.tails_by_word) >= MAX_TAILS:
                del self.tails_by_word[next(iter(self.tails_by_word))]
            self.tails_by_word[word] = LogTail(since_ms)
        return self.tails_by_word[word]


def read(site: CallLimitedSite, query: Query) -> Document:
    """Read the functions' new log lines, and return all kept lines, the newest first.

    The query's `trace` is a trace id or any word. Raises `BadRequest`, and `CallFailed` if listing functions fails.
    """
    trace = query.get("trace", "")
    if len(trace) > MAX_TRACE or '"' in trace:
        raise BadRequest(f"trace: up to {MAX_TRACE} characters, and no quotation marks")
    groups = site.read_cached("log groups", lambda: find_log_groups(site.connection), every_s=GROUPS_INTERVAL_S) or {}
    look_back_ms = TRACE_LOOK_BACK_MS if trace else LOOK_BACK_MS
    word = trace or STRUCTURED
    tail = site.memory.get_state("tails", LogTails).get_tail(word, since_ms=now_ms() - look_back_ms)
    client = site.connection.client("logs")
    troubles: dict[str, str] = {}
    for service, group in groups.items():
        logs = tail.logs.setdefault(group, FunctionLogs(client, group, tail.since_ms))
        may_go_on = partial(site.spend_calls, 1)
        ask = partial(tail.read_new_lines, service, logs, word, may_go_on=may_go_on)
        try_reading(
            troubles, service, partial(site.read_cached_in_turn, "log", (word, group), ask, every_s=LINES_INTERVAL_S)
        )
    lines = sorted(tail.lines, key=lambda line: -line["at_ms"])
    return {"functions": sorted(groups), "lines": lines, "since_ms": tail.since_ms, "troubles": troubles}


def find_log_groups(connection: Connection) -> Mapping[str, str]:
    """Find the log groups of the site's functions, by the functions' service names. Raises `CallFailed`."""
    prefix = add_stage_prefix(FUNCTION_PREFIX, connection.stage)
    functions = [function for page in connection.pages("lambda", "list_functions") for function in page["Functions"]]
    return {
        service: function.get("LoggingConfig", {}).get("LogGroup") or f"/aws/lambda/{function['FunctionName']}"
        for function in functions
        if function["FunctionName"].startswith(prefix)
        and (service := function.get("Environment", {}).get("Variables", {}).get(SERVICE_VARIABLE))
    }


def build_line_document(service: str, line: LogLine) -> Mapping[str, Any]:
    """Format a log line with its level, event and fields. If the line isn't JSON, its whole text is the event."""
    try:
        record = read_json(line.text)
    except ValueError:
        record = None
    if not isinstance(record, dict) or "level" not in record:
        return {
            "at_ms": line.at_ms,
            "service": service,
            "level": "",
            "event": mask_addresses(line.text[:MAX_FIELD]),
            "fields": {},
        }
    fields = {
        name: mask_addresses(_format_value(value)[:MAX_FIELD])
        for name, value in record.items()
        if name not in STANDARD_FIELDS
    }
    return {
        "at_ms": line.at_ms,
        "service": service,
        "level": _format_value(record["level"]),
        "event": mask_addresses(_format_value(record.get("message", ""))[:MAX_FIELD]),
        "fields": fields,
    }


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
