"""Parses and checks filter files, which have a session's filters by queue, before a session is created. Pure.

The caller decodes JSON or YAML. Errors name the place in the document. A whole `mirrord.json` is accepted too, but only
its part with queue filters is used.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from sluice.errors import BadFilter
from sluice.splitting.filters import jq, patterns
from sluice.splitting.filters.jq import CompileProblem
from sluice.splitting.filters.templates import Templates
from sluice.splitting.filters.values import (
    MAX_LINE_PATTERNS,
    MAX_NAMED_ATTRIBUTES,
    MAX_QUEUES,
    Filter,
    Mode,
    QueueFilter,
    QueueFilters,
)

ROOT = "split_queues"
FEATURE = "feature"  # This part of a `mirrord.json` contains `split_queues`.
WHOLE_ROOT = f"{FEATURE}.{ROOT}"
KEY = "key"  # This part of a `mirrord.json` is the session's key.

# A `mirrord.json` may also split queues of brokers other than SQS.
OTHER_BROKERS = frozenset(
    ["AzureServiceBus", "BullMQ", "GCPPubSub", "Kafka", "NATS", "NATSPubSub", "RMQ", "RedisPubSub", "Temporal"]
)
MAX_NAMES = 20  # A note names at most this many ignored parts.

# A session with a key and no filter has this filter. It matches messages with mirrord's marker in any attribute, such
# as `baggage`. mirrord itself uses a jq program on all values. A pattern costs a fifteenth of that, and nothing if the
# index excludes the message. The key `alice` doesn't match `alice2`.
KEY_FILTER = {"filter": {"metadata": r"mirrord-session={{ key }}(?![\w.@-])"}}

FIELDS = frozenset({"queue_type", "queue_mode", "message_filter", "filter", "jq_filter"})
LISTED_FIELDS = FIELDS | {"queue_id"}
LINE_FORMS = frozenset({"metadata", "all_of", "any_of"})

# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html
_ATTRIBUTE = re.compile(r"[A-Za-z0-9_.-]{1,256}", re.ASCII)
_NO_TEMPLATES = Templates()


def parse_filters(
    document: object, *, compile_problem: CompileProblem, templates: Templates = _NO_TEMPLATES
) -> QueueFilters:
    """Parse a decoded filter file: a map by queue id, a list of entries with `queue_id`, or a whole `mirrord.json`.

    `queue_type` defaults to SQS and `queue_mode` to steal. Raises `BadFilter` for the first fault.
    """
    whole = find_feature(document)
    root = ROOT if whole is None else WHOLE_ROOT
    queues = _check_map("filter file", document, known_fields={ROOT}) if whole is None else whole
    if ROOT not in queues:
        raise BadFilter(root, "is missing")
    reader = _EntryParser(templates)
    parsed: dict[str, QueueFilter] = {}
    for place, template, fields in _iter_entries(root, queues[ROOT], sqs_only=whole is not None):
        queue_id = templates.fill(place, template, kind="text")
        if queue_id in parsed:
            raise BadFilter(place, f"queue_id {queue_id!r} is listed twice")
        parsed[queue_id] = reader.queue_filter(place, fields)
        check(place, parsed[queue_id].filter, compile_problem=compile_problem)
    if not parsed:
        raise BadFilter(root, "names no queue")
    if len(parsed) > MAX_QUEUES:
        raise BadFilter(root, f"names more than {MAX_QUEUES} queues")
    return parsed


def check_filters(filters: QueueFilters, *, compile_problem: CompileProblem) -> None:
    """Check the patterns and programs of filters that didn't come from a file. Decoding has checked their limits.

    Raises `BadFilter`, with the place that the faulty part would have in a file.
    """
    for queue_id, queue_filter in filters.items():
        check(f"{ROOT}.{queue_id}", queue_filter.filter, compile_problem=compile_problem)


def check(place: str, filter_: Filter, *, compile_problem: CompileProblem) -> None:
    """Check that a filter's patterns and program can be used. Raises `BadFilter`."""
    for name, pattern in filter_.attributes:
        if not _ATTRIBUTE.fullmatch(name):
            words = f"no attribute is called {name[:80]!r}: SQS has 1 to 256 letters, digits, _, - and . for a name"
            raise BadFilter(f"{place}.message_filter", words)
        cause = patterns.find_problem(pattern)
        if cause is not None:
            raise BadFilter(f"{place}.message_filter.{name}", f"{pattern[:80]!r} {cause}")
    for form, lines in (("all_of", filter_.all_of), ("any_of", filter_.any_of)):
        for number, pattern in enumerate(lines or ()):
            _check_metadata_line(f"{place}.filter.{form}.{number}.metadata", pattern)
    cause = None if filter_.jq is None else jq.find_problem(filter_.jq, compile_problem=compile_problem)
    if cause is not None:
        raise BadFilter(f"{place}.jq_filter", f"{(filter_.jq or '')[:80]!r} {cause}")


def _check_metadata_line(place: str, pattern: str) -> None:
    """Check a pattern on lines. An empty pattern would match every line, so it is refused as a mistake."""
    cause = patterns.find_problem(pattern, exact_case=True) if pattern else "is empty"
    if cause is not None:
        raise BadFilter(place, f"{pattern[:80]!r} {cause}")


def _iter_entries(root: str, queues: object, *, sqs_only: bool) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield each queue's place in the file, id and fields. `sqs_only`: skip other brokers' queues."""
    if not isinstance(queues, list):
        for queue_id, entry in _check_map(root, queues).items():
            if not queue_id:
                raise BadFilter(root, "a queue id is empty")
            if not (sqs_only and is_of_another_broker(entry)):
                yield f"{root}.{queue_id}", queue_id, _check_map(f"{root}.{queue_id}", entry, known_fields=FIELDS)
        return
    for number, entry in enumerate(queues):
        if sqs_only and is_of_another_broker(entry):
            continue
        place = f"{root}.{number}"
        fields = _check_map(place, entry, known_fields=LISTED_FIELDS)
        if "queue_id" not in fields:
            raise BadFilter(f"{place}.queue_id", "is missing")
        queue_id = _check_text(f"{place}.queue_id", fields["queue_id"])
        if not queue_id:
            raise BadFilter(f"{place}.queue_id", "is empty")
        yield place, queue_id, fields


class _EntryParser(msgspec.Struct, frozen=True):
    """Parses the fields of one queue in a filter file."""

    templates: Templates

    def queue_filter(self, place: str, fields: Mapping[str, Any]) -> QueueFilter:
        queue_type = self._read_text(f"{place}.queue_type", fields.get("queue_type", "SQS"))
        if queue_type != "SQS":
            raise BadFilter(f"{place}.queue_type", f"unknown queue type {queue_type!r}; there is SQS")
        mode = self._read_text(f"{place}.queue_mode", fields.get("queue_mode", Mode.STEAL))
        if mode not in set(Mode):
            raise BadFilter(f"{place}.queue_mode", f"unknown mode {mode!r}; there are {', '.join(Mode)}")
        attributes, lines, program = (fields.get(name) for name in ("message_filter", "filter", "jq_filter"))
        if attributes is not None and lines is not None:
            raise BadFilter(f"{place}.filter", "goes without message_filter: say it all in one of them")
        named = {} if attributes is None else _check_map(f"{place}.message_filter", attributes)
        if len(named) > MAX_NAMED_ATTRIBUTES:
            raise BadFilter(f"{place}.message_filter", f"names more than {MAX_NAMED_ATTRIBUTES} attributes")
        in_lines = {} if lines is None else self._parse_line_patterns(f"{place}.filter", lines)
        pairs = tuple((name, self._parse_pattern(f"{place}.message_filter.{name}", named[name])) for name in named)
        jq_filter = None if program is None else self._read_text(f"{place}.jq_filter", program, kind="program")
        return QueueFilter(filter=Filter(attributes=pairs, jq=jq_filter, **in_lines), mode=Mode(mode))

    def _parse_line_patterns(self, place: str, value: object) -> dict[str, tuple[str, ...]]:
        """Parse patterns on lines: a single pattern, or a flat list of patterns of which all, or any, must match."""
        fields = _check_map(place, value, known_fields=LINE_FORMS)
        if len(fields) != 1:
            raise BadFilter(place, f"has {len(fields)} fields, not one of {', '.join(sorted(LINE_FORMS))}")
        form, patterns = next(iter(fields.items()))
        if form == "metadata":
            pattern = self._parse_pattern(f"{place}.metadata", patterns)
            _check_metadata_line(f"{place}.metadata", pattern)
            return {"all_of": (pattern,)}
        if not isinstance(patterns, list):
            raise BadFilter(f"{place}.{form}", f"is {_yaml_type_name(patterns)}, not a list")
        if not 0 < len(patterns) <= MAX_LINE_PATTERNS:
            raise BadFilter(f"{place}.{form}", f"has {len(patterns)} patterns, not 1 to {MAX_LINE_PATTERNS}")
        patterns_ = []
        for number, entry in enumerate(patterns):
            at = f"{place}.{form}.{number}"
            if "metadata" not in _check_map(at, entry, known_fields={"metadata"}):
                raise BadFilter(f"{at}.metadata", "is missing")
            patterns_.append(self._parse_pattern(f"{at}.metadata", entry["metadata"]))
        return {form: tuple(patterns_)}

    def _parse_pattern(self, place: str, value: object) -> str:
        return self._read_text(place, value, kind="pattern")

    def _read_text(self, place: str, value: object, kind: Literal["text", "pattern", "program"] = "text") -> str:
        return self.templates.fill(place, _check_text(place, value), kind=kind)


def _check_map(place: str, value: object, *, known_fields: Collection[str] | None = None) -> Mapping[str, Any]:
    """Check that a value is a map, and return it. If `known_fields` is set, refuse all other field names."""
    if not isinstance(value, dict):
        raise BadFilter(place, f"is {_yaml_type_name(value)}, not a map")
    for name in value:
        if not isinstance(name, str):
            raise BadFilter(f"{place}.{name}", f"its name is {_yaml_type_name(name)}, not text: quote it")
        if not _is_unicode(name):
            raise BadFilter(place, f"the name {name[:80]!r} isn't Unicode: it has half a character")
        if known_fields is not None and name not in known_fields:
            at = name or "''" if known_fields == {ROOT} else f"{place}.{name}"
            raise BadFilter(at, f"unknown field; there are {', '.join(sorted(known_fields))}")
    return value


def _check_text(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadFilter(place, f"is {_yaml_type_name(value)}, not text: quote it")
    if not _is_unicode(value):
        raise BadFilter(place, f"{value[:80]!r} isn't Unicode: it has half a character")
    return value


def _is_unicode(text: str) -> bool:
    """Return whether the text is Unicode: JSON and YAML can contain a lone surrogate, which SQS refuses."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _yaml_type_name(value: object) -> str:
    names: dict[type, str] = {dict: "a map", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def build_document(options: Iterable[str]) -> dict[str, Any]:
    """Build a filter file from `--filter QUEUE:ATTRIBUTE=REGEX` options. All of a queue's options must match.

    The queue id ends at the first colon, and the attribute's name at the first equals sign. Raises `BadFilter`.
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


def find_feature(document: object) -> Mapping[str, Any] | None:
    """Return the part of a whole `mirrord.json` that contains the filters; None for any other document."""
    feature = document.get(FEATURE) if isinstance(document, dict) and ROOT not in document else None
    return feature if isinstance(feature, dict) else None


def read_key(document: object, templates: Templates) -> str | None:
    """Read the session's key from a whole `mirrord.json`. Returns None if no key is set. Raises `BadFilter`."""
    if find_feature(document) is None or not isinstance(document, dict) or KEY not in document:
        return None
    return templates.fill(KEY, _check_text(KEY, document[KEY]), kind="text")


def is_of_another_broker(entry: object) -> bool:
    """Return whether an entry of `split_queues` is about a broker other than SQS."""
    queue_type = entry.get("queue_type") if isinstance(entry, dict) else None
    return isinstance(queue_type, str) and queue_type in OTHER_BROKERS


def describe_ignored(document: object) -> str | None:
    """Describe the parts of a whole `mirrord.json` that have no effect here. Returns None if all have an effect."""
    feature = find_feature(document)
    if feature is None or not isinstance(document, dict):
        return None
    names = [str(name) for name in document if name not in {FEATURE, KEY}]
    names += [f"{FEATURE}.{name}" for name in feature if name != ROOT]
    queues = feature.get(ROOT)
    entries = queues.items() if isinstance(queues, dict) else enumerate(queues) if isinstance(queues, list) else ()
    names += [f"{WHOLE_ROOT}.{name}" for name, entry in entries if is_of_another_broker(entry)]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    said = ", ".join(name[:80] for name in sorted(names)[:MAX_NAMES])
    return f"left out, as it isn't about SQS queues: {said}{more}" if names else None
