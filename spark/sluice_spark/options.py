"""Options of a read, parsed once, when Spark plans the query. Every error names its option."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

from sluice_spark.errors import InvalidOption
from sluice_spark.formats.bodies import BodyOptions
from sluice_spark.formats.envelopes import ENVELOPES, S3Selection
from sluice_spark.formats.payloads import PAYLOAD_LIMIT
from sluice_spark.formats.s3_objects import open_s3_client
from sluice_spark.log.planning import ReadLimit
from sluice_spark.log.store import Store, open_store
from sluice_spark.sqs.access import Identity, Places, account_from_role, region_from_url
from sluice_spark.sqs.client import SqsClient

CONNECTIONS_LIMIT = 512
WAIT_LIMIT_S = 20
VISIBILITY_LIMIT_S = 43_200
RETENTION_DEFAULT_S = 3600.0
FAILURE_TIMEOUT_DEFAULT_S = 600.0
BUFFER_DEFAULT_BYTES = 64 * 2**20
_FUNCTION = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"  # Matches a function's name as package.module:name.
_SIZES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DELETE_MODES = {
    "staged": {"delete": True, "after_commit": False},
    "none": {"delete": False, "after_commit": False},
    "afterCommit": {"delete": True, "after_commit": True},
}
# Options that Spark, not the user, adds for a table or a view.
_SPARK_INTERNAL = {
    "serialization.format", "header.provider", "path",
    "collation", "comment", "external", "is_managed_location", "location", "owner", "provider",
}  # fmt: skip
Meaning = TypeVar("Meaning")
SINK_NAMES = {"failonerror": "failOnError", "deduplication": "deduplication"}  # A view may serve SELECT and INSERT.


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Parsed and checked options of a read."""

    queue_urls: tuple[str, ...] = ()
    staging_location: str = ""
    region: str | None = None
    endpoint: str | None = None
    identity: Identity = field(default_factory=Identity)
    connections: int = 64
    buffer_bytes: int = BUFFER_DEFAULT_BYTES
    read_limit: ReadLimit = field(default_factory=ReadLimit)
    visibility_s: int | None = None
    wait_s: int | None = None
    delete: bool = True
    after_commit: bool = False
    failure_timeout_s: float | None = FAILURE_TIMEOUT_DEFAULT_S  # seconds; None for no limit
    rate_limit: int | str | None = None  # messages/s, or the name of a function, `package.module:name`
    bodies: BodyOptions = field(default_factory=BodyOptions)
    s3: S3Selection = field(default_factory=S3Selection)
    retention_s: float = RETENTION_DEFAULT_S
    payload_limit: int = PAYLOAD_LIMIT  # maximum bytes; a larger payload makes a bad record
    s3_endpoint: str | None = None
    check_md5: bool = False

    def open_store(self) -> Store:
        """Open the staging location's store."""
        return open_store(self.staging_location, self.identity.profile)

    def create_s3_client(self) -> Any:
        """Create the S3 client for payloads, with the queue's identity, in `region` or the queue's region."""
        region = self.region or (region_from_url(self.queue_urls[0]) if self.queue_urls else None)
        return open_s3_client(self.identity, region=region, endpoint=self.s3_endpoint)


@lru_cache(maxsize=16)  # Spark reuses worker processes, and creating a botocore session is slow.
def build_client_factory(options: Options, connections: int) -> Callable[[], SqsClient]:
    """Return a factory of SQS clients with at most `connections` connections to each region for each role.

    Asks botocore once for each endpoint and identity. Raises InvalidOption if a queue has no region, no credentials, or
    no role of its account.
    """
    places = Places(region=options.region, endpoint=options.endpoint, identity=options.identity)
    for queue_url in options.queue_urls:
        places(queue_url)
    return partial(SqsClient, places, connections=connections, check_md5=options.check_md5)


def parse_options(given: Mapping[str, str]) -> Options:
    """Parse a read's options. Raises InvalidOption for unknown, malformed, missing or contradictory options."""
    options = Options()
    for spelt, value in given.items():
        lowered = spelt.lower()
        if lowered in SINK_NAMES or is_spark_internal(lowered):
            continue
        if lowered not in NAMES:
            raise InvalidOption(spelt, f"unknown; there are {', '.join(sorted(_PARSERS))}")
        name = NAMES[lowered]
        place, parse = _PARSERS[name]
        options = _replace_value(options, place, parse_value(name, parse, str(value).strip()))
    if not options.staging_location:
        raise InvalidOption(
            "stagingLocation", "missing: a path, or s3://bucket/prefix, that the driver and all executors see"
        )
    for is_broken, name, why in _check_combinations(options):
        if is_broken:
            raise InvalidOption(name, why)
    for url in options.queue_urls:
        options.identity.for_queue(url)
    return options


def parse_value(name: str, parse: Callable[[str], Meaning], value: str) -> Meaning:
    """Parse one option's value. Raises InvalidOption with the option's name if `parse` raises ValueError."""
    try:
        return parse(value)
    except ValueError as error:
        raise InvalidOption(name, str(error)) from error


def _replace_value(values: Any, path: str, value: Any) -> Any:
    """Replace a field at a path such as `identity.profile`. With an empty path `value` has several fields by name."""
    name, _, rest = path.partition(".")
    if not name:
        return replace(values, **value)
    return replace(values, **{name: _replace_value(getattr(values, name), rest, value) if rest else value})


def _check_combinations(options: Options) -> Iterator[tuple[object, str, str]]:
    """Yield the rules on combinations of options: whether a rule is broken, the option to name, and the reason."""
    bodies, urls = options.bodies, options.queue_urls
    fifo = any(url.endswith(".fifo") for url in urls)
    yield (
        fifo and not options.delete,
        "deleteMode",
        "'none' stops a FIFO queue: a group goes on once its messages are deleted",
    )

    regions = {region for url in urls if (region := region_from_url(url))}
    others = ", ".join(sorted(regions - {options.region}))
    mismatch = f"{options.region!r}, but the queue URLs say {others}: leave it out"
    yield options.region and not options.endpoint and others, "region", mismatch
    several = f"one for queues of several regions, {', '.join(sorted(regions))}"
    yield options.endpoint and len(regions) > 1, "endpoint", several
    roles = options.identity.role_arns
    one_each = "several roles are of one account: each is for the queues of its account"
    yield len({account_from_role(arn) for arn in roles}) < len(roles), "roleArn", one_each

    buckets = bodies.payload_buckets
    yield buckets and len(roles) > 1, "roleArn", "several, but payloadBuckets reads all payloads as one"
    yield options.payload_limit != PAYLOAD_LIMIT and not buckets, "s3MaxObjectBytes", "needs payloadBuckets"
    yield options.s3_endpoint and not buckets, "s3Endpoint", "needs payloadBuckets"
    never = "S3's notifications are never elsewhere: not with envelope s3"
    yield buckets and "s3" in bodies.envelopes, "payloadBuckets", never
    body = "with payloadBuckets at most 256m: a payload is a row's body"
    yield options.payload_limit > PAYLOAD_LIMIT, "s3MaxObjectBytes", body

    opened = "a path needs an envelope or payloadBuckets: other bodies are rows as they are"
    yield bodies.quarantine and bodies.keeps_bodies_as_received, "badRecords", opened
    choice = "s3Glob" if options.s3.glob != "*" else "s3Removed"
    yield options.s3 != S3Selection() and "s3" not in bodies.envelopes, choice, "needs envelope s3"


def is_spark_internal(option_name: str) -> bool:
    """Whether Spark added this option for a table. Spark also repeats each table option as `option.…`."""
    return option_name in _SPARK_INTERNAL or option_name.startswith("option.")


def _list_parser(pattern: str, expected: str) -> Callable[[str], tuple[str, ...]]:
    def parse(value: str) -> tuple[str, ...]:
        entries = tuple(entry.strip() for entry in value.split(",") if entry.strip())
        for entry in entries:
            if not re.fullmatch(pattern, entry):
                raise ValueError(f"{entry!r} is not {expected}")
        if not entries or len(set(entries)) != len(entries):
            raise ValueError(f"{value!r} is not {expected}, or several different ones with commas between")
        return entries

    return parse


def _number_parser(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not re.fullmatch(r"\d+", value) or not low <= int(value) <= high:
            raise ValueError(f"{value!r} is not a whole number from {low} to {high}")
        return int(value)

    return parse


def _either_parser(pattern: str, first: Callable[[str], Any], second: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda value: (first if re.fullmatch(pattern, value) else second)(value)


def _parse_size(value: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", value.lower())
    if not match or match[2] not in _SIZES or not int(match[1]):
        raise ValueError(f"{value!r} is not a size as 1048576, 64m or 2g")
    return int(match[1]) * _SIZES[match[2]]


def _parse_duration(value: str) -> float:
    match = re.fullmatch(r"(\d+)\s*([smhd])", value.lower())
    if not match:
        raise ValueError(f"{value!r} is not a time as 90s, 30m, 12h or 7d")
    return float(int(match[1]) * _TIMES[match[2]])


def choice_parser(choices: Mapping[str, Meaning]) -> Callable[[str], Meaning]:
    """Return a parser that maps a word, in lower or upper case, to its value in `choices`, or raises ValueError."""
    meanings = {name.lower(): meaning for name, meaning in choices.items()}

    def parse(value: str) -> Meaning:
        if value.lower() not in meanings:
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return meanings[value.lower()]

    return parse


def _text_parser(pattern: str, expected: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} is not {expected}" if value else "is empty")
        return value

    return parse


def _parse_envelopes(value: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in value.split(","))
    if names == ("none",):
        return ()
    if len(set(names)) != len(names) or not set(names) <= set(ENVELOPES) or "s3" in names[:-1]:
        raise ValueError(f"{value!r} is none of none, {', '.join(ENVELOPES)}, nor several, outermost first, s3 last")
    return names


FLAG = choice_parser({"true": True, "false": False})
_TEXT = _text_parser(r"(?s).+", "a text")
_PLACE = _text_parser(r"s3[an]?://[^/]+(/.*)?|file:/.*|/.*", "an absolute path or s3://bucket/prefix")


def _parse_location(value: str) -> str:
    """Parse a location, without a trailing slash. Raises ValueError if its store can't refuse to overwrite objects."""
    return _PLACE(value).rstrip("/") or "/"


# For each option, its field in Options and its parser.
_PARSERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "queueUrl": ("queue_urls", _list_parser(r"https?://[^/\s]+/.+", "a queue URL")),
    "region": ("region", _TEXT),
    "endpoint": ("endpoint", _TEXT),
    "stagingLocation": ("staging_location", _parse_location),
    "roleArn": ("identity.role_arns", _list_parser(r"arn:aws[a-z-]*:iam::\d{12}:role/.+", "a role's ARN")),
    "roleSessionName": ("identity.role_session_name", _TEXT),
    "externalId": ("identity.external_id", _TEXT),
    "profile": ("identity.profile", _TEXT),
    "maxConnections": ("connections", _number_parser(1, CONNECTIONS_LIMIT)),
    "maxBufferedBytes": ("buffer_bytes", _parse_size),
    "maxMessagesPerTrigger": ("read_limit.messages", _number_parser(1, 2**31)),
    "maxBytesPerTrigger": ("read_limit.size", _parse_size),
    "checkMd5": ("check_md5", FLAG),
    "rateLimit": ("rate_limit", _either_parser(_FUNCTION, str, _number_parser(1, 10**7))),
    "failOnReceiveErrorAfter": ("failure_timeout_s", _either_parser("(?i)never", lambda _: None, _parse_duration)),
    "visibilityTimeout": ("visibility_s", _number_parser(1, VISIBILITY_LIMIT_S)),
    "waitTimeSeconds": ("wait_s", _number_parser(1, WAIT_LIMIT_S)),  # 0 would be a short poll
    "deleteMode": ("", choice_parser(_DELETE_MODES)),
    "retention": ("retention_s", _parse_duration),
    "badRecords": ("bodies.quarantine", _either_parser("(?i)column", lambda _: None, _parse_location)),
    "envelope": ("bodies.envelopes", _parse_envelopes),
    "payloadBuckets": ("bodies.payload_buckets", _list_parser(r"[A-Za-z0-9._-]{3,255}", "a bucket's name")),
    "s3Glob": ("s3.glob", _TEXT),
    "s3Removed": ("s3.removed", FLAG),
    "s3MaxObjectBytes": ("payload_limit", _parse_size),
    "s3Endpoint": ("s3_endpoint", _text_parser(r"https?://[^/\s]+.*", "a URL")),
}
NAMES = {name.lower(): name for name in _PARSERS}
