"""Section `rendezvous`: the offers queue, the bridges, how many proxies are held, where events go."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.errors import BadParameter
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.rendezvous.broker import ANSWER_QUEUE_PREFIX
from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX
from sluice.rendezvous.protocol.bridges import DEFAULT_FINGERPRINT, parse_bridges
from stacks.sections.values import MEMORY_MB, ROOT, Parse, as_json, flag, number, parsed, text

EVENTS_EXCHANGE = "events"
DEFAULT_BRIDGE = {
    "displayName": "default",
    "webSocketAddress": "wss://snowflake.torproject.net/",
    "fingerprint": DEFAULT_FINGERPRINT,
}
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html: 80 characters. FIFO queues
# end in .fifo, and rendezvous clients can't send to them.
QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
QUEUE_ARN = re.compile(r"arn:aws[a-z-]*:sqs:[a-z0-9-]+:\d{12}:(.+)")
# All variables of a function share 4 KB: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
BRIDGES_MAX_BYTES = 3_000
RELAY_PATTERN = re.compile(r"\^?[A-Za-z0-9.-]{0,253}\$?")
PROJECT_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_./-]{0,250}\.mmdb")
HELD_PROXIES_MOST = 10_000  # each holds an execution environment for up to ten seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousParameters:
    """Section `rendezvous`."""

    offers_queue_name: str = "snowflake-broker"
    existing_offers_queue_arn: str | None = None  # then no offers queue is made, and its name is this one's
    bridges: str = json.dumps(DEFAULT_BRIDGE)  # in JSON lines, as the functions read them
    allowed_relay_pattern: str = "snowflake.torproject.net$"
    held_proxies_min: int = 4
    held_proxies_max: int = 200
    broker_max_concurrency: int = 2  # of each of its two queues
    broker_memory_mb: int = 512
    proxy_memory_mb: int = 256
    sweeper_memory_mb: int = 256
    counters_memory_mb: int = 256
    counters_window_s: int = 5  # how long events may wait to be counted together
    events_exchange: str | None = EVENTS_EXCHANGE  # what offers, polls and answers are published to; None is nothing
    geoip_file: str | None = None  # a MaxMind database of countries in the project; else every country is unknown
    keep_state: bool = True  # false deletes the table with its stack: for trials


def _queue_name(value: object) -> str:
    name = text(value)
    if not QUEUE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not 1 to 80 letters, digits, hyphens and underscores")
    for prefix in (ANSWER_QUEUE_PREFIX, MAILBOX_PREFIX):
        if name.startswith(prefix):
            raise ValueError(f"{name!r} begins with {prefix}, as queues do that the sweeper deletes and clients read")
    return name


def _queue_arn(value: object) -> str | None:
    if value is None:
        return None
    arn = text(value)
    found = QUEUE_ARN.fullmatch(arn)
    if not found:
        raise ValueError(f"{arn!r} is not the ARN of an SQS queue")
    _queue_name(found[1])
    return arn


def _bridges(value: object) -> str:
    listed = json.loads(value) if isinstance(value, str) else value
    if not isinstance(listed, list):
        raise ValueError(f"{value!r} is not a list")  # noqa: TRY004 - one type for whatever is wrong with a value
    lines = "\n".join(json.dumps(bridge) for bridge in listed)
    parse_bridges(lines)
    if len(lines.encode()) > BRIDGES_MAX_BYTES:
        raise ValueError(
            f"the list has {len(lines.encode())} bytes; a function's environment holds {BRIDGES_MAX_BYTES}"
        )
    return lines


def _relay_pattern(value: object) -> str:
    pattern = text(value)
    if not pattern or not RELAY_PATTERN.fullmatch(pattern):
        raise ValueError(
            f"{pattern!r} is not the end of a host name, with ^ before it or $ after it; $ alone is any host"
        )
    return pattern


def _exchange_name(value: object) -> str | None:
    name = as_json(value)  # null, from the command line
    return None if name is None else Exchange(name=text(value), type=ExchangeType.TOPIC).name


def _project_file(value: object) -> str | None:
    if value is None:
        return None
    path = text(value)
    if not PROJECT_FILE.fullmatch(path) or ".." in path.split("/"):
        raise ValueError(f"{path!r} is not the path of a .mmdb file within the project")
    return path


KEY = f"{ROOT}.rendezvous"
PARSERS: Mapping[str, Parse] = {
    "offers_queue_name": _queue_name,
    "existing_offers_queue_arn": _queue_arn,
    "bridges": _bridges,
    "allowed_relay_pattern": _relay_pattern,
    "held_proxies_min": number(1, HELD_PROXIES_MOST),
    "held_proxies_max": number(1, HELD_PROXIES_MOST),
    # https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
    "broker_max_concurrency": number(2, 1_000),
    "broker_memory_mb": MEMORY_MB,
    "proxy_memory_mb": MEMORY_MB,
    "sweeper_memory_mb": MEMORY_MB,
    "counters_memory_mb": MEMORY_MB,
    "counters_window_s": number(0, 300),
    "events_exchange": _exchange_name,
    "geoip_file": _project_file,
    "keep_state": flag,
}


def read(given: Mapping[str, object]) -> RendezvousParameters:
    """From all that is given, by dotted key. Raises `BadParameter`."""
    parameters = RendezvousParameters(**parsed(given, KEY, PARSERS))
    if parameters.held_proxies_min > parameters.held_proxies_max:
        raise BadParameter(
            f"{KEY}.held_proxies_min",
            f"{parameters.held_proxies_min} is over held_proxies_max {parameters.held_proxies_max}",
        )
    return parameters
