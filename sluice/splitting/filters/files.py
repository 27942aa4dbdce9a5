"""Filter files: what a session asks of each queue, parsed and checked before anything is created. Pure.

JSON and YAML are decoded by the caller; here the document becomes values, or an error that names the place.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from sluice.errors import BadFilter
from sluice.splitting.filters import jq, patterns
from sluice.splitting.filters.jq import CompileProblem
from sluice.splitting.filters.values import (
    MAX_NAMED_ATTRIBUTES,
    MAX_QUEUES,
    Filter,
    Mode,
    QueueFilter,
    QueueFilters,
)

ROOT = "split_queues"
FIELDS = frozenset({"queue_type", "queue_mode", "message_filter", "jq_filter"})
LISTED_FIELDS = FIELDS | {"queue_id"}


def parse_filters(document: object, *, compile_problem: CompileProblem) -> QueueFilters:
    """Read a decoded filter file: a map by queue id, or a list of entries with `queue_id`.

    `queue_type` is SQS and `queue_mode` steal where they aren't given. Raises `BadFilter` for the first fault found.
    """
    queues = _fields("filter file", document, known={ROOT})
    if ROOT not in queues:
        raise BadFilter(ROOT, "is missing")
    parsed: dict[str, QueueFilter] = {}
    for place, queue_id, fields in _entries(queues[ROOT]):
        if queue_id in parsed:
            raise BadFilter(place, f"queue_id {queue_id!r} is listed twice")
        parsed[queue_id] = _queue_filter(place, fields)
        check(place, parsed[queue_id].filter, compile_problem=compile_problem)
    if not parsed:
        raise BadFilter(ROOT, "names no queue")
    if len(parsed) > MAX_QUEUES:
        raise BadFilter(ROOT, f"names more than {MAX_QUEUES} queues")
    return parsed


def check_filters(filters: QueueFilters, *, compile_problem: CompileProblem) -> None:
    """Check the patterns and programs of filters that didn't come from a file; their limits are their types'.

    Raises `BadFilter`, with the place that it would have in a file.
    """
    for queue_id, asked in filters.items():
        check(f"{ROOT}.{queue_id}", asked.filter, compile_problem=compile_problem)


def check(place: str, asked: Filter, *, compile_problem: CompileProblem) -> None:
    """Check that a filter's patterns and program can be used. Raises `BadFilter`."""
    for name, pattern in asked.attributes:
        cause = patterns.problem(pattern)
        if cause is not None:
            raise BadFilter(f"{place}.message_filter.{name}", f"{pattern[:80]!r} {cause}")
    cause = None if asked.jq is None else jq.problem(asked.jq, compile_problem=compile_problem)
    if cause is not None:
        raise BadFilter(f"{place}.jq_filter", f"{(asked.jq or '')[:80]!r} {cause}")


def _entries(queues: object) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Place, queue id and fields of each queue."""
    if not isinstance(queues, list):
        for queue_id, entry in _fields(ROOT, queues).items():
            if not queue_id:
                raise BadFilter(ROOT, "a queue id is empty")
            yield f"{ROOT}.{queue_id}", queue_id, _fields(f"{ROOT}.{queue_id}", entry, known=FIELDS)
        return
    for number, entry in enumerate(queues):
        place = f"{ROOT}.{number}"
        fields = _fields(place, entry, known=LISTED_FIELDS)
        if "queue_id" not in fields:
            raise BadFilter(f"{place}.queue_id", "is missing")
        queue_id = _text(f"{place}.queue_id", fields["queue_id"])
        if not queue_id:
            raise BadFilter(f"{place}.queue_id", "is empty")
        yield place, queue_id, fields


def _queue_filter(place: str, fields: Mapping[str, Any]) -> QueueFilter:
    queue_type = _text(f"{place}.queue_type", fields.get("queue_type", "SQS"))
    if queue_type != "SQS":
        raise BadFilter(f"{place}.queue_type", f"unknown queue type {queue_type!r}; there is SQS")
    mode = _text(f"{place}.queue_mode", fields.get("queue_mode", Mode.STEAL))
    if mode not in set(Mode):
        raise BadFilter(f"{place}.queue_mode", f"unknown mode {mode!r}; there are {', '.join(Mode)}")
    attributes, program = fields.get("message_filter"), fields.get("jq_filter")
    named = {} if attributes is None else _fields(f"{place}.message_filter", attributes)
    if len(named) > MAX_NAMED_ATTRIBUTES:
        raise BadFilter(f"{place}.message_filter", f"names more than {MAX_NAMED_ATTRIBUTES} attributes")
    return QueueFilter(
        filter=Filter(
            attributes=tuple((name, _text(f"{place}.message_filter.{name}", named[name])) for name in named),
            jq=None if program is None else _text(f"{place}.jq_filter", program),
        ),
        mode=Mode(mode),
    )


def _fields(place: str, value: object, *, known: Collection[str] | None = None) -> Mapping[str, Any]:
    """Read a map by name; of a map with `known` names any other is refused."""
    if not isinstance(value, dict):
        raise BadFilter(place, f"is {_kind(value)}, not a map")
    for name in value:
        if not isinstance(name, str):
            raise BadFilter(f"{place}.{name}", f"its name is {_kind(name)}, not text: quote it")
        if not _is_unicode(name):
            raise BadFilter(place, f"the name {name[:80]!r} isn't Unicode: it has half a character")
        if known is not None and name not in known:
            at = name or "''" if known == {ROOT} else f"{place}.{name}"
            raise BadFilter(at, f"unknown field; there are {', '.join(sorted(known))}")
    return value


def _text(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadFilter(place, f"is {_kind(value)}, not text: quote it")
    if not _is_unicode(value):
        raise BadFilter(place, f"{value[:80]!r} isn't Unicode: it has half a character")
    return value


def _is_unicode(text: str) -> bool:
    """Whether the text can be sent: JSON and YAML can name one surrogate alone, which is no character."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _kind(value: object) -> str:
    names: dict[type, str] = {dict: "a map", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def document_of(options: Iterable[str]) -> dict[str, Any]:
    """Make the filter file that `--filter QUEUE:ATTRIBUTE=REGEX` options stand for; all of a queue's must match.

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
