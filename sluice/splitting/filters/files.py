"""Filter files: what a session asks of each queue, parsed and checked before anything is created. Pure.

JSON and YAML are decoded by the caller; here the document becomes values, or an error that names the place.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sluice.errors import BadFilter
from sluice.splitting.filters import jq, patterns
from sluice.splitting.filters.jq import CompileProblem

ROOT = "split_queues"
EVERY_QUEUE = "*"
MAX_QUEUES = 100
MAX_NAMED_ATTRIBUTES = 64
FIELDS = frozenset({"queue_type", "queue_mode", "message_filter", "jq_filter"})
LISTED_FIELDS = FIELDS | {"queue_id"}


class Mode(StrEnum):
    """Whether the session takes the messages that match, or gets copies of them."""

    STEAL = "steal"
    MIRROR = "mirror"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a message must have: every named attribute found by its pattern, and jq's yes where there is a program.

    Hashable, so that sessions that ask for the same are asked once. `attributes` holds (name, pattern) pairs in the
    order of the file.
    """

    attributes: tuple[tuple[str, str], ...] = ()
    jq: str | None = None

    @property
    def matches_nothing(self) -> bool:
        """Whether it is empty: the session gets nothing of the queue."""
        return not self.attributes and self.jq is None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFilter:
    """A session's filter and mode for one queue."""

    filter: Filter
    mode: Mode = Mode.STEAL


QueueFilters = Mapping[str, QueueFilter]  # by queue id, or EVERY_QUEUE


def filter_of(filters: QueueFilters, queue_id: str) -> QueueFilter | None:
    """The session's filter for a queue: an explicit id wins over `*`. None where the session doesn't name it."""
    return filters.get(queue_id) or filters.get(EVERY_QUEUE)


def parse_filters(document: object, *, compile_problem: CompileProblem) -> QueueFilters:
    """The filters of a decoded filter file: a map by queue id, or a list of entries with `queue_id`.

    `queue_type` is SQS and `queue_mode` steal where they aren't given. Raises `BadFilter` for the first fault found.
    """
    queues = _root(document)
    parsed: dict[str, QueueFilter] = {}
    for place, queue_id, fields in _entries(queues):
        if queue_id in parsed:
            raise BadFilter(place, f"queue_id {queue_id!r} is listed twice")
        parsed[queue_id] = _queue_filter(place, fields, compile_problem)
    if not parsed:
        raise BadFilter(ROOT, "names no queue")
    if len(parsed) > MAX_QUEUES:
        raise BadFilter(ROOT, f"names more than {MAX_QUEUES} queues")
    return parsed


def _root(document: object) -> object:
    fields = _mapping("filter file", document)
    for name in fields:
        if name != ROOT:
            raise BadFilter(name or "''", f"unknown field; the file holds {ROOT}")
    if ROOT not in fields:
        raise BadFilter(ROOT, "is missing")
    return fields[ROOT]


def _entries(queues: object) -> Iterator[tuple[str, str, dict[str, Any]]]:
    if isinstance(queues, list):
        yield from _listed(queues)
        return
    for queue_id, entry in _mapping(ROOT, queues).items():
        place = f"{ROOT}.{queue_id}"
        if not queue_id:
            raise BadFilter(ROOT, "a queue id is empty")
        fields = _mapping(place, entry)
        _reject_unknown(place, fields, FIELDS)
        yield place, queue_id, fields


def _listed(queues: list[Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for number, entry in enumerate(queues):
        place = f"{ROOT}.{number}"
        fields = _mapping(place, entry)
        _reject_unknown(place, fields, LISTED_FIELDS)
        if "queue_id" not in fields:
            raise BadFilter(f"{place}.queue_id", "is missing")
        queue_id = _text(f"{place}.queue_id", fields["queue_id"])
        if not queue_id:
            raise BadFilter(f"{place}.queue_id", "is empty")
        yield place, queue_id, fields


def _queue_filter(place: str, fields: dict[str, Any], compile_problem: CompileProblem) -> QueueFilter:
    queue_type = _text(f"{place}.queue_type", fields.get("queue_type", "SQS"))
    if queue_type != "SQS":
        raise BadFilter(f"{place}.queue_type", f"unknown queue type {queue_type!r}; there is SQS")
    return QueueFilter(
        filter=Filter(
            attributes=_attributes(f"{place}.message_filter", fields.get("message_filter")),
            jq=_jq(f"{place}.jq_filter", fields.get("jq_filter"), compile_problem),
        ),
        mode=_mode(f"{place}.queue_mode", fields.get("queue_mode", Mode.STEAL)),
    )


def _mode(place: str, value: object) -> Mode:
    mode = _text(place, value)
    if mode not in set(Mode):
        raise BadFilter(place, f"unknown mode {mode!r}; there are {', '.join(Mode)}")
    return Mode(mode)


def _attributes(place: str, value: object) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    named = _mapping(place, value)
    if len(named) > MAX_NAMED_ATTRIBUTES:
        raise BadFilter(place, f"names more than {MAX_NAMED_ATTRIBUTES} attributes")
    return tuple((name, _pattern(f"{place}.{name}", pattern)) for name, pattern in named.items())


def _pattern(place: str, value: object) -> str:
    pattern = _text(place, value)
    cause = patterns.problem(pattern)
    if cause is not None:
        raise BadFilter(place, f"{pattern[:80]!r} {cause}")
    return pattern


def _jq(place: str, value: object, compile_problem: CompileProblem) -> str | None:
    if value is None:
        return None
    program = _text(place, value)
    cause = jq.problem(program, compile_problem=compile_problem)
    if cause is not None:
        raise BadFilter(place, f"{program[:80]!r} {cause}")
    return program


def _mapping(place: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadFilter(place, f"is {_kind(value)}, not a map")
    for name in value:
        if not isinstance(name, str):
            raise BadFilter(f"{place}.{name}", f"its name is {_kind(name)}, not text: quote it")
    return value


def _text(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadFilter(place, f"is {_kind(value)}, not text: quote it")
    return value


def _reject_unknown(place: str, fields: dict[str, Any], known: frozenset[str]) -> None:
    for name in fields:
        if name not in known:
            raise BadFilter(f"{place}.{name}", f"unknown field; there are {', '.join(sorted(known))}")


def _kind(value: object) -> str:
    names: dict[type, str] = {dict: "a map", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def document_of(options: Iterable[str]) -> dict[str, Any]:
    """The filter file that `--filter QUEUE:ATTRIBUTE=REGEX` options stand for; several of one queue must all match.

    The queue id ends at the first colon, the name at the first equals sign. Raises `BadFilter`.
    """
    queues: dict[str, Any] = {}
    for option in options:
        queue_id, colon, rest = option.partition(":")
        name, equals, pattern = rest.partition("=")
        if not (queue_id and colon and name and equals):
            raise BadFilter("--filter", f"{option!r} is not QUEUE:ATTRIBUTE=REGEX")
        named = queues.setdefault(queue_id, {"message_filter": {}})["message_filter"]
        if name in named:
            raise BadFilter("--filter", f"{queue_id}:{name} is given twice")
        named[name] = pattern
    return {ROOT: queues}
