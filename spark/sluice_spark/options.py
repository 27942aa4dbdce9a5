"""The user's options, parsed once, at plan time. Every complaint names its option."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sluice_spark.errors import InvalidOption
from sluice_spark.formats.deserialisation import FORMATS, Deserialisation
from sluice_spark.formats.envelopes import ENVELOPES, S3Choice
from sluice_spark.formats.s3_files import CSV, FILE_FORMATS, MISSING_POLICIES, S3Files
from sluice_spark.log.planning import Admission
from sluice_spark.sqs.access import Identity

CONNECTIONS_LIMIT = 512
WAIT_LIMIT_S = 20
VISIBILITY_LIMIT_S = 43_200
RETENTION_DEFAULT_S = 3600.0
EXECUTORS_VISIBILITY_S = 120  # asked for with each receive, unless the option says another
EXECUTORS_VISIBILITY_LEAST_S = 10  # a task receives for a quarter of it, less a long poll
ASCII_LIMIT = 127
_SIZES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/.+")
_DELETE_MODES = {
    "staged": {"delete": True, "after_commit": False},
    "none": {"delete": False, "after_commit": False},
    "afterCommit": {"delete": True, "after_commit": True},
}
# Spark's own, on a table's or a view's way to its source: not the user's words to us
_SPARKS_OWN = {
    "serialization.format", "header.provider", "path",
    "collation", "comment", "external", "is_managed_location", "location", "owner", "provider",
}  # fmt: skip
SINK_NAMES = {"failonerror": "failOnError", "deduplication": "deduplication"}  # one view serves SELECT and INSERT


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Parsed and in range."""

    queue_urls: tuple[str, ...] = ()
    staging_location: str = ""
    region: str | None = None
    endpoint: str | None = None
    identity: Identity = field(default_factory=Identity)
    connections: int = 64
    admission: Admission = field(default_factory=Admission)
    visibility_s: int | None = None
    wait_s: int | None = None
    delete: bool = True
    after_commit: bool = False
    rate_limit: int | None = None
    deserialisation: Deserialisation = field(default_factory=Deserialisation)
    s3: S3Choice = field(default_factory=S3Choice)
    files: S3Files = field(default_factory=S3Files)
    retention_s: float = RETENTION_DEFAULT_S
    executors: bool = False


def parsed(given: Mapping[str, str]) -> Options:
    """Raises InvalidOption: unknown, malformed, out of range, missing, or one that this version doesn't offer."""
    values = {name.lower(): str(value).strip() for name, value in given.items() if not sparks_own(name.lower())}
    options = Options()
    for name, value in values.items():
        if name in SINK_NAMES:
            continue
        if name not in _PARSERS:
            raise InvalidOption(_spelling(given, name), f"unknown; there are {', '.join(sorted(_NAMES.values()))}")
        try:
            options = _PARSERS[name](options, value)
        except ValueError as error:
            raise InvalidOption(_NAMES[name], str(error)) from error
    if not options.staging_location:
        raise InvalidOption(
            "stagingLocation", "missing: a path, or s3://bucket/prefix, that the driver and all executors see"
        )
    _checked_together(options)
    return options


def _checked_together(options: Options) -> None:
    fifo = any(url.endswith(".fifo") for url in options.queue_urls)
    if fifo and not options.delete:
        raise InvalidOption("deleteMode", "'none' stops a FIFO queue: a group goes on once its messages are deleted")
    wanted = options.deserialisation
    if wanted.format != "raw" and not wanted.schema:
        raise InvalidOption("schema", f"missing: format {wanted.format!r} needs one")
    _checked_files(options)
    if wanted.format == "raw" and wanted.schema and not options.files.read:
        raise InvalidOption("schema", "needs a format: json, avro, or a function")
    if wanted.format == "raw" and wanted.quarantine and not options.files.read:
        raise InvalidOption("badRecords", "a path needs a format: json, avro, or a function")
    if options.s3 != S3Choice() and "s3" not in wanted.envelopes:
        raise InvalidOption("s3Glob" if options.s3.glob != "*" else "s3Removed", "needs envelope s3")
    if options.executors:
        _checked_executors(options, fifo=fifo)


def _checked_executors(options: Options, *, fifo: bool) -> None:
    if fifo:
        raise InvalidOption("mode", "'executors' can't keep a FIFO queue's order, which is not of one task: driver")
    if options.after_commit:
        raise InvalidOption(
            "deleteMode", "'afterCommit' needs a receiver that outlives the tasks: mode driver, or staged, or none"
        )
    if options.files.read:
        raise InvalidOption("s3Format", "which objects were read is known in one place: mode driver")
    visibility_s = options.visibility_s or EXECUTORS_VISIBILITY_S
    if visibility_s < EXECUTORS_VISIBILITY_LEAST_S:
        raise InvalidOption("visibilityTimeout", f"with mode executors at least {EXECUTORS_VISIBILITY_LEAST_S} seconds")
    if options.retention_s < 2 * visibility_s:
        raise InvalidOption("retention", f"with mode executors at least twice the visibility timeout, {visibility_s} s")


def _checked_files(options: Options) -> None:
    files, wanted = options.files, options.deserialisation
    if not files.read:
        given = next((name for name, value in _FILE_FIELDS.items() if getattr(files, value[0]) != _default(name)), None)
        if given:
            raise InvalidOption(given, "needs s3Format: csv, json or parquet")
        return
    if wanted.envelopes[-1:] != ("s3",):
        raise InvalidOption("s3Format", "needs an envelope that ends in s3")
    if wanted.format != "raw":
        raise InvalidOption("s3Format", f"the body is S3's notification: not with format {wanted.format!r}")
    if not wanted.schema:
        raise InvalidOption("schema", f"missing: s3Format {files.format!r} needs the columns of the files")
    for name in ("s3CsvHeader", "s3CsvDelimiter"):
        if files.format != CSV and getattr(files, _FILE_FIELDS[name][0]) != _default(name):
            raise InvalidOption(name, "needs s3Format csv")


def _default(name: str) -> Any:
    return getattr(S3Files(), _FILE_FIELDS[name][0])


def sparks_own(lowered: str) -> bool:
    """Whether Spark says it of a table, beside the table's options: each of those again as `option.…` too."""
    return lowered in _SPARKS_OWN or lowered.startswith("option.")


def _spelling(given: Mapping[str, str], lowered: str) -> str:
    return next((name for name in given if name.lower() == lowered), lowered)


def _queue_urls(value: str) -> tuple[str, ...]:
    urls = tuple(url.strip() for url in value.split(",") if url.strip())
    if not urls or len(set(urls)) != len(urls):
        raise ValueError("one queue URL or several different ones, with commas between")
    for url in urls:
        if not re.fullmatch(r"https?://[^/\s]+/.+", url):
            raise ValueError(f"{url!r} is not a queue URL")
    return urls


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not re.fullmatch(r"\d+", value) or not low <= int(value) <= high:
            raise ValueError(f"{value!r} is not a whole number from {low} to {high}")
        return int(value)

    return parse


def _size(value: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", value.lower())
    if not found or found[2] not in _SIZES or not int(found[1]):
        raise ValueError(f"{value!r} is not a size as 1048576, 64m or 2g")
    return int(found[1]) * _SIZES[found[2]]


def _time(value: str) -> float:
    found = re.fullmatch(r"(\d+)\s*([smhd])", value.lower())
    if not found:
        raise ValueError(f"{value!r} is not a time as 90s, 30m, 12h or 7d")
    return float(int(found[1]) * _TIMES[found[2]])


def _one_of(value: str, offered: Mapping[str, Any], later: tuple[str, ...]) -> Any:
    known = {name.lower(): meaning for name, meaning in offered.items()}
    if value.lower() in known:
        return known[value.lower()]
    if value.lower() in {name.lower() for name in later}:
        raise ValueError(f"{value!r} is not offered by this version; there is {', '.join(offered)}")
    raise ValueError(f"{value!r} is none of {', '.join(offered)}")


def _location(value: str) -> str:
    if not re.fullmatch(r"(s3[an]?://[^/]+(/.*)?|file:/.*|/.*)", value):
        raise ValueError(f"{value!r} is neither an absolute path nor s3://bucket/prefix")
    return value.rstrip("/") or "/"


def _role(value: str) -> str:
    if not _ROLE.fullmatch(value):
        raise ValueError(f"{value!r} is not a role's ARN")
    return value


def _format(value: str) -> str:
    if value.lower() in FORMATS:
        return value.lower()
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value):
        raise ValueError(f"{value!r} is none of {', '.join(FORMATS)}, nor a function as package.module:name")
    return value


def _envelopes(value: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in value.split(","))
    if names == ("none",):
        return ()
    if len(set(names)) != len(names) or not set(names) <= set(ENVELOPES) or "s3" in names[:-1]:
        raise ValueError(f"{value!r} is none of none, {', '.join(ENVELOPES)}, nor several, outermost first, s3 last")
    return names


def _quarantine(value: str) -> str | None:
    return None if value.lower() == "column" else _location(value)


def _flag(value: str) -> bool:
    return bool(_one_of(value, {"true": True, "false": False}, ()))


def _text(value: str) -> str:
    if not value:
        raise ValueError("is empty")
    return value


def _field(name: str, parse: Callable[[str], Any]) -> Callable[[Options, str], Options]:
    return lambda options, value: replace(options, **{name: parse(value)})


def _identity(name: str, parse: Callable[[str], Any]) -> Callable[[Options, str], Options]:
    return lambda options, value: replace(options, identity=replace(options.identity, **{name: parse(value)}))


def _admission(name: str, parse: Callable[[str], Any]) -> Callable[[Options, str], Options]:
    return lambda options, value: replace(options, admission=replace(options.admission, **{name: parse(value)}))


def _deserialisation(name: str, parse: Callable[[str], Any]) -> Callable[[Options, str], Options]:
    return lambda options, value: replace(
        options, deserialisation=replace(options.deserialisation, **{name: parse(value)})
    )


def _s3(name: str, parse: Callable[[str], Any]) -> Callable[[Options, str], Options]:
    return lambda options, value: replace(options, s3=replace(options.s3, **{name: parse(value)}))


def _word(offered: tuple[str, ...]) -> Callable[[str], str]:
    return lambda value: str(_one_of(value, {name: name for name in offered}, ()))


def _delimiter(value: str) -> str:
    found = {r"\t": "\t", "tab": "\t"}.get(value.lower(), value)
    if len(found) != 1 or found in '"\r\n' or ord(found) > ASCII_LIMIT:
        raise ValueError(f"{value!r} is not one ASCII character, nor tab")
    return found


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+.*", value):
        raise ValueError(f"{value!r} is not a URL")
    return value


_FILE_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "s3Format": ("format", _word(FILE_FORMATS)),
    "s3Missing": ("missing", _word(MISSING_POLICIES)),
    "s3CsvHeader": ("csv_header", _flag),
    "s3CsvDelimiter": ("csv_delimiter", _delimiter),
    "s3MaxObjectBytes": ("object_bytes", _size),
    "s3Endpoint": ("endpoint", _url),
}


def _files(name: str, parse: Callable[[str], Any]) -> Callable[[Options, str], Options]:
    return lambda options, value: replace(options, files=replace(options.files, **{name: parse(value)}))


_BY_NAME: Mapping[str, Callable[[Options, str], Options]] = {
    "queueUrl": _field("queue_urls", _queue_urls),
    "region": _field("region", _text),
    "endpoint": _field("endpoint", _text),
    "stagingLocation": _field("staging_location", _location),
    "roleArn": _identity("role_arn", _role),
    "roleSessionName": _identity("role_session_name", _text),
    "externalId": _identity("external_id", _text),
    "profile": _identity("profile", _text),
    "maxConnections": _field("connections", _number(1, CONNECTIONS_LIMIT)),
    "maxMessagesPerTrigger": _admission("messages", _number(1, 2**31)),
    "maxBytesPerTrigger": _admission("size", _size),
    "rateLimit": _field("rate_limit", _number(1, 10**7)),
    "visibilityTimeout": _field("visibility_s", _number(1, VISIBILITY_LIMIT_S)),
    "waitTimeSeconds": _field("wait_s", _number(1, WAIT_LIMIT_S)),  # long polls only
    "deleteMode": lambda options, value: replace(options, **_one_of(value, _DELETE_MODES, ())),
    "mode": lambda options, value: replace(options, executors=_one_of(value, {"driver": False, "executors": True}, ())),
    "retention": _field("retention_s", _time),
    "format": _deserialisation("format", _format),
    "schema": _deserialisation("schema", _text),
    "badRecords": _deserialisation("quarantine", _quarantine),
    "envelope": _deserialisation("envelopes", _envelopes),
    "s3Glob": _s3("glob", _text),
    "s3Removed": _s3("removed", _flag),
    **{name: _files(*value) for name, value in _FILE_FIELDS.items()},
}
_NAMES = {name.lower(): name for name in _BY_NAME}
_PARSERS = {name.lower(): parser for name, parser in _BY_NAME.items()}
NAMES = frozenset(_NAMES)  # in lower case
