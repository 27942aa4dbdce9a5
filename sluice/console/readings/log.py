"""Page *Log*: what a site's functions say, as it comes, by function, level and trace; addresses are masked."""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from sluice.aws.clients import now_ms
from sluice.aws.connections import Connection
from sluice.aws.deployment import STACK, read_deployment
from sluice.console.readings.pipeline import MESSAGES, files_at, table_at
from sluice.console.readings.shared import tried
from sluice.console.requests import text_in
from sluice.console.sites import Document, KnownSite, Query
from sluice.console.tables import rows_that
from sluice.documents import read_json
from sluice.errors import BadRequest
from sluice.operator.logs import FunctionLogs, LogLine
from sluice.operator.rendezvous_status import latest_offers
from sluice.rendezvous.protocol.addresses import masked
from sluice.stages import staged

OURS = "Sluice"  # what names of functions begin with, at a stage after its own
SERVICE = "POWERTOOLS_SERVICE_NAME"
GROUPS_EVERY_S = 600.0
LINES_EVERY_S = 3.0
LOOK_BACK_MS = 15 * 60_000
TRACE_LOOK_BACK_MS = 60 * 60_000
STRUCTURED = "level"  # a word that each line of the functions' own log has, and no other
MAX_LINES = 500  # kept of a tail
MAX_TAILS = 20
MAX_TRACE = 200  # characters
MAX_FIELD = 4_000  # characters
MAX_ROWS = 50  # of a trace
MAX_FILES = 50  # of a table, the newest
OWN = frozenset({"level", "location", "message", "timestamp", "service"})


@dataclass(slots=True)
class Tail:
    """The last lines with a word, of all functions."""

    since_ms: int
    lines: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_LINES))
    logs: dict[str, FunctionLogs] = field(default_factory=dict)

    def note(self, service: str, logs: FunctionLogs, word: str, *, may_go_on: Callable[[], bool]) -> None:
        """Add the lines that a function has said since it was asked last, as far as the calls go."""
        for line in logs.new_lines(word, now_ms=now_ms(), may_go_on=may_go_on):
            self.lines.append(line_of(service, line))


@dataclass(slots=True)
class Tails:
    """By word; of many the oldest go."""

    by_word: dict[str, Tail] = field(default_factory=dict)

    def of(self, word: str, *, since_ms: int) -> Tail:
        """Give the tail of a word, from some time on where it is new."""
        if word not in self.by_word:
            while len(self.by_word) >= MAX_TAILS:
                del self.by_word[next(iter(self.by_word))]
            self.by_word[word] = Tail(since_ms)
        return self.by_word[word]


def read(site: KnownSite, query: Query) -> Document:
    """Read the lines that are kept, the newest first, and those that came; functions are asked by turns.

    `trace` is a trace's id, or any other word. Raises `BadRequest`, and `CallFailed` where no function can be listed.
    """
    trace = query.get("trace", "")
    if len(trace) > MAX_TRACE or '"' in trace:
        raise BadRequest(f"trace: up to {MAX_TRACE} characters, and no quotation marks")
    groups = site.kept("log groups", lambda: log_groups(site.connection), every_s=GROUPS_EVERY_S) or {}
    look_back_ms = TRACE_LOOK_BACK_MS if trace else LOOK_BACK_MS
    word = trace or STRUCTURED
    tail = site.memory.of("tails", Tails).of(word, since_ms=now_ms() - look_back_ms)
    client = site.connection.client("logs")
    troubles: dict[str, str] = {}
    for service, group in groups.items():
        logs = tail.logs.setdefault(group, FunctionLogs(client, group, tail.since_ms))
        may_go_on = partial(site.spend, 1)
        ask = partial(tail.note, service, logs, word, may_go_on=may_go_on)
        tried(troubles, service, partial(site.kept_in_turn, "log", (word, group), ask, every_s=LINES_EVERY_S))
    lines = sorted(tail.lines, key=lambda line: -line["at_ms"])
    return {"functions": sorted(groups), "lines": lines, "since_ms": tail.since_ms, "troubles": troubles}


def trace(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Find a trace beside the log: the offer that it is of, where that is known still, and the rows that it became."""
    wanted = text_in(fields, "trace")
    troubles: dict[str, str] = {}
    offers = tried(troubles, "the last offers", lambda: _offers_of(site, wanted))
    rows = tried(troubles, "what is landed", lambda: _rows_of(site, wanted))
    return {"offers": offers or [], "rows": rows or [], "troubles": troubles}


def _offers_of(site: KnownSite, wanted: str) -> Sequence[Document]:
    table = read_deployment(site.connection, site.outputs(STACK)).table_name
    latest = latest_offers(site.connection.client("dynamodb"), table)
    return [asdict(each) for each in latest if wanted in each.trace]


def _rows_of(site: KnownSite, wanted: str) -> Sequence[Document]:
    files = files_at(site)
    table = table_at(site, files, "messages", MESSAGES, in_full=True)
    rows = rows_that(
        files, table, lambda row: wanted in (row.get("trace_header") or ""), most=MAX_ROWS, most_files=MAX_FILES
    )
    return [_row(row) for row in rows]


def _row(row: Mapping[str, Any]) -> Document:
    times = {name: row.get(name) for name in ("published_at", "sent_at", "first_received_at")}
    return {
        "exchange": str(row.get("exchange") or ""),
        "date": str(row.get("date") or ""),
        "sites": [str(each) for each in row.get("sites") or ()],
        **{f"{name}_ms": None if value is None else round(value.timestamp() * 1000) for name, value in times.items()},
        "body": masked(str(row.get("body") or ""), most=MAX_FIELD),
    }


def log_groups(connection: Connection) -> Mapping[str, str]:
    """Find the log group of each of the site's functions, by what a function calls itself. Raises `CallFailed`."""
    prefix = staged(OURS, connection.stage)
    functions = [each for page in connection.pages("lambda", "list_functions") for each in page["Functions"]]
    return {
        service: each.get("LoggingConfig", {}).get("LogGroup") or f"/aws/lambda/{each['FunctionName']}"
        for each in functions
        if each["FunctionName"].startswith(prefix)
        and (service := each.get("Environment", {}).get("Variables", {}).get(SERVICE))
    }


def line_of(service: str, line: LogLine) -> Mapping[str, Any]:
    """Write a line: its level, what happened, and the fields beside; one that isn't structured is its text alone."""
    try:
        said = read_json(line.text)
    except ValueError:
        said = None
    if not isinstance(said, dict) or "level" not in said:
        return {
            "at_ms": line.at_ms,
            "service": service,
            "level": "",
            "event": masked(line.text[:MAX_FIELD]),
            "fields": {},
        }
    fields = {name: masked(_text(value)[:MAX_FIELD]) for name, value in said.items() if name not in OWN}
    return {
        "at_ms": line.at_ms,
        "service": service,
        "level": _text(said["level"]),
        "event": masked(_text(said.get("message", ""))[:MAX_FIELD]),
        "fields": fields,
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
