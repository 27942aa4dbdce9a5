"""Parser of the jobs' arguments. On an error the process names the argument and exits with code 2, as argparse does."""

import argparse
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sluice.federation.matching.exchanges import MAX_NAME_CHARACTERS
from sluice.pipeline.jobs import TableFormat

from sluice_jobs.table_schemas import ATTRIBUTE_TYPES, RESERVED
from sluice_spark.errors import InvalidOption
from sluice_spark.metrics.measures import NAMESPACE
from sluice_spark.options import parse_options as parsed_options

TABLE_FORMATS = [table_format.value for table_format in TableFormat]
_LOCATION = re.compile(r"(s3[an]?://[^/`]+/|file:/|/)[^`]+")  # no backticks, which quote the location in SQL statements
_NAMESPACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
LATE_DAYS_DEFAULT = 3
TRIGGER_SECONDS_DEFAULT = 30.0
COMPACT_DAYS_DEFAULT = 7
TARGET_MB_DEFAULT = 128
EVENTS_EXCHANGE = "events"


def parse(arguments: Sequence[str], *, today: date) -> argparse.Namespace:
    """Parse a job's arguments; `job` is its name. Exits with 2 on an error. `today` is the day in UTC."""
    parser = argparse.ArgumentParser(prog="sluice_job", description="Sluice's jobs for Spark.", allow_abbrev=False)
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB")

    location: dict[str, Any] = {"required": True, "type": _parse_location, "metavar": "LOC"}
    number: dict[str, Any] = {"type": _parse_count, "metavar": "N"}
    land = jobs.add_parser("land", help="move messages from queues to tables", allow_abbrev=False)
    land.add_argument("--queue-url", required=True, metavar="URL[,URL]", help="URLs of the queues to receive from")
    land.add_argument("--staging", **location, help="location where received messages are staged")
    land.add_argument("--checkpoint", **location, help="query's checkpoint")
    land.add_argument("--quarantine", **location, help="for unreadable messages")
    land.add_argument("--drain", action="store_true", help="stop when the queues are empty and all batches committed")
    land.add_argument("--max-messages", **number, help="maximum per batch")
    land.add_argument("--max-connections", **number, help="concurrent receives")
    land.add_argument("--envelope", metavar="NAME[,NAME]", help="envelopes around the bodies, outermost first")
    columns: dict[str, Any] = {"type": _parse_columns, "default": {}, "metavar": "NAME:TYPE[,…]"}
    land.add_argument("--columns", **columns, help="message attributes to land as columns")
    land.add_argument("--late-days", type=_parse_days, default=LATE_DAYS_DEFAULT, metavar="N")
    land.add_argument("--trigger-seconds", type=_parse_seconds, default=TRIGGER_SECONDS_DEFAULT, metavar="S")
    land.add_argument(
        "--metrics", nargs="?", const=NAMESPACE, metavar="NAMESPACE", help="write metrics to stdout as EMF"
    )

    statistics = jobs.add_parser("statistics", help="compute a day's statistics", allow_abbrev=False)
    statistics.add_argument(
        "--day", required=True, type=lambda text: _parse_day(text, today), metavar="YYYY-MM-DD|yesterday"
    )
    statistics.add_argument("--output", **location)
    statistics.add_argument("--exchange", default=EVENTS_EXCHANGE, metavar="NAME", help="exchange of the events")

    compact = jobs.add_parser("compact", help="merge small files", allow_abbrev=False)
    compact.add_argument("--days", **number, default=COMPACT_DAYS_DEFAULT, help="closed days to compact")
    compact.add_argument("--target-mb", **number, default=TARGET_MB_DEFAULT, help="target file size, MiB")

    replay = jobs.add_parser("replay", help="send messages to an exchange again", allow_abbrev=False)
    source = replay.add_mutually_exclusive_group(required=True)
    source.add_argument("--tables", metavar="LOC", help="replay messages from tables")
    source.add_argument("--staging", type=_parse_location, metavar="LOC", help="replay retained segments")
    replay.add_argument("--table-format", choices=TABLE_FORMATS, default="parquet")
    replay.add_argument(
        "--queue-url", required=True, type=_parse_queue_url, metavar="URL", help="ingress queue of the exchange"
    )
    replay.add_argument("--exchange", required=True, type=_parse_exchange, metavar="NAME")
    replay.add_argument("--from-exchange", metavar="NAME", help="replay only its messages; default: all")
    replay.add_argument("--from", required=True, type=_parse_time, dest="start", metavar="ISO", help="sent at or after")
    replay.add_argument("--to", required=True, type=_parse_time, dest="end", metavar="ISO", help="sent before")
    replay.add_argument("--rate", **number, help="maximum messages per second")

    for job in (land, statistics, compact):
        job.add_argument("--tables", required=True, metavar="LOC", help="a location; with iceberg catalog.namespace")
        job.add_argument("--table-format", required=True, choices=TABLE_FORMATS)
    for job in (land, replay):
        job.add_argument("--region", metavar="R", help="region of the queues; default: from their URLs")
        job.add_argument("--endpoint", metavar="URL", help="endpoint of SQS")
    options = parser.parse_args(arguments)
    _check_combinations(parser, options)
    return options


def _check_combinations(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    tables = getattr(options, "tables", None)
    if tables is not None:
        pattern, kind = _LOCATION, "an absolute path or s3://bucket/prefix"
        if options.table_format == "iceberg":
            pattern, kind = _NAMESPACE, "catalog.namespace"
        if not pattern.fullmatch(tables):
            parser.error(f"argument --tables: {tables!r} is not {kind}, as format {options.table_format} needs")
        options.tables = tables.rstrip("/")
    if options.job == "land":
        try:
            parsed_options(source_options(options))
        except InvalidOption as error:
            parser.error(f"argument {_ARGUMENT_BY_OPTION.get(error.option, error.option)}: {error.why}")
    if options.job == "replay" and options.start >= options.end:
        parser.error("argument --to: is not after --from")


DRAIN_WAIT_S = "2"


def source_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of the `sqs` source for job `land`."""
    options = {
        "queueUrl": arguments.queue_url,
        "stagingLocation": arguments.staging,
        "region": arguments.region,
        "endpoint": arguments.endpoint,
        "envelope": arguments.envelope,
        "maxMessagesPerTrigger": arguments.max_messages and str(arguments.max_messages),
        "maxConnections": arguments.max_connections and str(arguments.max_connections),
        # A drain waits for the last receive, so a short wait time of receives ends the drain sooner.
        "waitTimeSeconds": DRAIN_WAIT_S if arguments.drain else None,
    }
    return {name: value for name, value in options.items() if value is not None}


_ARGUMENT_BY_OPTION = {
    "queueUrl": "--queue-url",
    "stagingLocation": "--staging",
    "region": "--region",
    "endpoint": "--endpoint",
    "envelope": "--envelope",
}


def _text_parser(pattern: str, expected: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
        return text

    return parse


def _number_parser(pattern: str, expected: str, kind: type = int) -> Callable[[str], Any]:
    return lambda text: kind(_text_parser(pattern, expected)(text))


def _parse_location(text: str) -> str:
    return _text_parser(_LOCATION.pattern, "an absolute path, nor s3://bucket/prefix")(text).rstrip("/")


_parse_exchange = _text_parser(rf"(?s).{{1,{MAX_NAME_CHARACTERS}}}", f"a name of 1 to {MAX_NAME_CHARACTERS} characters")
_parse_queue_url = _text_parser(r"https?://[^/\s]+/[^\s,]+", "a queue URL")
_parse_count = _number_parser(r"[1-9]\d{0,8}", "a whole number from 1 to 999999999")
_parse_days = _number_parser(r"[0-2]?\d{1,3}|3[0-5]\d\d|36[0-4]\d|3650", "a number of days from 0 to 3650")
_parse_seconds = _number_parser(r"\d{1,5}(\.\d{1,3})?", "a number of seconds", float)


def _parse_columns(text: str) -> dict[str, str]:
    columns: dict[str, str] = {}
    for column in text.split(","):
        name, _, kind = column.strip().partition(":")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,127}", name) or kind not in ATTRIBUTE_TYPES:
            raise argparse.ArgumentTypeError(f"{column!r} is not name:type with a type of {', '.join(ATTRIBUTE_TYPES)}")
        if name.lower() in {*RESERVED, *map(str.lower, columns)}:
            raise argparse.ArgumentTypeError(f"column {name} exists already: choose another name")
        columns[name] = kind
    return columns


def _parse_day(text: str, today: date) -> date:
    if text == "yesterday":
        return today - timedelta(days=1)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither YYYY-MM-DD nor yesterday") from None


def _parse_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time as 2026-11-21T14:00:00Z") from None
