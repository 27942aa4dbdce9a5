"""The user's options, parsed once, at plan time. Every complaint names its option."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sluice_spark.access import Identity
from sluice_spark.errors import InvalidOption
from sluice_spark.planning import Admission

CONNECTIONS_LIMIT = 512
WAIT_LIMIT_S = 20
VISIBILITY_LIMIT_S = 43_200
RETENTION_DEFAULT_S = 3600.0
_SIZES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/.+")
# Spark's own, on a table's or a view's way to its source: not the user's words to us
_SPARKS_OWN = {"serialization.format", "header.provider", "path"}


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
    retention_s: float = RETENTION_DEFAULT_S


def parsed(given: Mapping[str, str]) -> Options:
    """Raises InvalidOption: unknown, malformed, out of range, missing, or one that this version doesn't offer."""
    values = {name.lower(): str(value).strip() for name, value in given.items() if name.lower() not in _SPARKS_OWN}
    options = Options()
    for name, value in values.items():
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
    return options


def _spelling(given: Mapping[str, str], lowered: str) -> str:
    return next((name for name in given if name.lower() == lowered), lowered)


def _queue_urls(value: str) -> tuple[str, ...]:
    urls = tuple(url.strip() for url in value.split(",") if url.strip())
    if not urls or len(set(urls)) != len(urls):
        raise ValueError("one queue URL or several different ones, with commas between")
    for url in urls:
        if not re.fullmatch(r"https?://[^/\s]+/.+", url):
            raise ValueError(f"{url!r} is not a queue URL")
        if url.endswith(".fifo"):
            raise ValueError(f"{url!r}: FIFO queues are not yet read in order, so they are not read at all")
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
    "visibilityTimeout": _field("visibility_s", _number(1, VISIBILITY_LIMIT_S)),
    "waitTimeSeconds": _field("wait_s", _number(1, WAIT_LIMIT_S)),  # long polls only
    "deleteMode": _field("delete", lambda value: _one_of(value, {"staged": True, "none": False}, ("afterCommit",))),
    "mode": lambda options, value: (_one_of(value, {"driver": True}, ("executors",)), options)[1],
    "retention": _field("retention_s", _time),
}
_NAMES = {name.lower(): name for name in _BY_NAME}
_PARSERS = {name.lower(): parser for name, parser in _BY_NAME.items()}
