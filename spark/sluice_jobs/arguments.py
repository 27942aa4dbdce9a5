"""The jobs' arguments. A mistake names the argument and ends the program with exit code 2, as argparse does."""

import argparse
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta

from sluice.federation.matching.exchanges import MAX_NAME_CHARACTERS
from sluice.pipeline.jobs import TableFormat

from sluice_jobs.table_schemas import ATTRIBUTE_TYPES, RESERVED
from sluice_spark.errors import InvalidOption
from sluice_spark.metrics.measures import NAMESPACE
from sluice_spark.options import parsed as parsed_options

TABLE_FORMATS = [each.value for each in TableFormat]
_LOCATION = re.compile(r"(s3[an]?://[^/`]+/|file:/|/)[^`]+")  # no backtick: it goes into SQL
_NAMESPACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
LATE_DAYS_DEFAULT = 3
TRIGGER_SECONDS_DEFAULT = 30.0
COMPACT_DAYS_DEFAULT = 7
TARGET_MB_DEFAULT = 128
EVENTS_EXCHANGE = "events"


def parse(arguments: Sequence[str], *, today: date) -> argparse.Namespace:
    """Parse a job's arguments; its name is in `job`. Exit with 2 where they can't be parsed. `today`: of UTC."""
    parser = argparse.ArgumentParser(prog="sluice_job", description="Sluice's jobs for Spark.", allow_abbrev=False)
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB")

    land = jobs.add_parser("land", help="from queues to tables", allow_abbrev=False)
    land.add_argument("--queue-url", required=True, metavar="URL[,URL]", help="queues to receive from")
    land.add_argument("--staging", required=True, type=_location, metavar="LOC", help="where messages are staged")
    land.add_argument("--checkpoint", required=True, type=_location, metavar="LOC", help="of the query")
    land.add_argument("--quarantine", required=True, type=_location, metavar="LOC", help="for what can't be read")
    land.add_argument("--drain", action="store_true", help="stop when the queues are empty and all is committed")
    land.add_argument("--max-messages", type=_count, metavar="N", help="of a batch")
    land.add_argument("--max-connections", type=_count, metavar="N", help="receives at once")
    land.add_argument("--envelope", metavar="NAME[,NAME]", help="what bodies are in, from the outermost in")
    land.add_argument(
        "--columns", type=_columns, default={}, metavar="NAME:TYPE[,…]", help="attributes that get a column"
    )
    land.add_argument("--late-days", type=_days, default=LATE_DAYS_DEFAULT, metavar="N")
    land.add_argument("--metrics", nargs="?", const=NAMESPACE, metavar="NAMESPACE", help="EMF lines on stdout")

    statistics = jobs.add_parser("statistics", help="a day's statistics", allow_abbrev=False)
    statistics.add_argument("--day", type=lambda text: _day(text, today), metavar="YYYY-MM-DD|yesterday")
    statistics.add_argument("--output", required=True, type=_location, metavar="LOC")
    statistics.add_argument("--exchange", default=EVENTS_EXCHANGE, metavar="NAME", help="which has the events")
    statistics.add_argument("--stream", action="store_true", help="keep the hourly table up to date until stopped")
    statistics.add_argument("--checkpoint", type=_location, metavar="LOC", help="of the stream")

    compact = jobs.add_parser("compact", help="small files into large ones", allow_abbrev=False)
    compact.add_argument("--days", type=_count, default=COMPACT_DAYS_DEFAULT, metavar="N", help="closed days")
    compact.add_argument("--target-mb", type=_count, default=TARGET_MB_DEFAULT, metavar="N", help="of a file")

    replay = jobs.add_parser("replay", help="back to an exchange", allow_abbrev=False)
    source = replay.add_mutually_exclusive_group(required=True)
    source.add_argument("--tables", metavar="LOC", help="replay what has landed")
    source.add_argument("--staging", type=_location, metavar="LOC", help="replay retained segments")
    replay.add_argument("--table-format", choices=TABLE_FORMATS, default="parquet")
    replay.add_argument("--queue-url", required=True, type=_queue_url, metavar="URL", help="an exchange's ingress")
    replay.add_argument("--exchange", required=True, type=_exchange, metavar="NAME")
    replay.add_argument("--from-exchange", metavar="NAME", help="only what came by it; else everything")
    replay.add_argument("--from", required=True, type=_moment, dest="start", metavar="ISO", help="sent at or after")
    replay.add_argument("--to", required=True, type=_moment, dest="end", metavar="ISO", help="sent before")
    replay.add_argument("--rate", type=_count, metavar="N", help="messages per second at most")

    for job in (land, statistics, compact):
        job.add_argument("--tables", required=True, metavar="LOC", help="a location; with iceberg catalog.namespace")
        job.add_argument("--table-format", required=True, choices=TABLE_FORMATS)
    for job in (land, statistics):
        job.add_argument("--trigger-seconds", type=_seconds, default=TRIGGER_SECONDS_DEFAULT, metavar="S")
    for job in (land, replay):
        job.add_argument("--region", metavar="R", help="of the queues; else from their URLs")
        job.add_argument("--endpoint", metavar="URL", help="of SQS")
    given = parser.parse_args(arguments)
    _check_together(parser, given)
    return given


def _check_together(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    tables = getattr(given, "tables", None)
    if tables is not None:
        wanted = _NAMESPACE if given.table_format == "iceberg" else _LOCATION
        if not wanted.fullmatch(tables):
            kind = "catalog.namespace" if given.table_format == "iceberg" else "an absolute path or s3://bucket/prefix"
            parser.error(f"argument --tables: {tables!r} is not {kind}, as format {given.table_format} needs")
        given.tables = tables.rstrip("/")
    if given.job == "land":
        try:
            parsed_options(source_options(given))
        except InvalidOption as error:
            parser.error(f"argument {_OF_OPTION.get(error.option, error.option)}: {error.why}")
    if given.job == "replay" and given.start >= given.end:
        parser.error("argument --to: is not after --from")
    if given.job == "statistics" and given.stream != (given.checkpoint is not None):
        parser.error("argument --checkpoint: goes with --stream, and --stream needs it")
    if given.job == "statistics" and given.stream == (given.day is not None):
        parser.error("argument --day: one of it and --stream is needed")


DRAIN_WAIT_S = "2"


def source_options(given: argparse.Namespace) -> dict[str, str]:
    """Of `land`: the source's."""
    options = {
        "queueUrl": given.queue_url,
        "stagingLocation": given.staging,
        "region": given.region,
        "endpoint": given.endpoint,
        "envelope": given.envelope,
        "maxMessagesPerTrigger": given.max_messages and str(given.max_messages),
        "maxConnections": given.max_connections and str(given.max_connections),
        # A drain ends when the receive that is under way does: soon, and it takes nothing that comes meanwhile for long
        "waitTimeSeconds": DRAIN_WAIT_S if given.drain else None,
    }
    return {name: value for name, value in options.items() if value is not None}


_OF_OPTION = {
    "queueUrl": "--queue-url",
    "stagingLocation": "--staging",
    "region": "--region",
    "endpoint": "--endpoint",
    "envelope": "--envelope",
}


def _text(pattern: str, what: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return text

    return parse


def _number(pattern: str, what: str) -> Callable[[str], int]:
    return lambda text: int(_text(pattern, what)(text))


def _location(text: str) -> str:
    return _text(_LOCATION.pattern, "an absolute path, nor s3://bucket/prefix")(text).rstrip("/")


def _exchange(text: str) -> str:
    if not 1 <= len(text) <= MAX_NAME_CHARACTERS:
        raise argparse.ArgumentTypeError(f"a name of {len(text)} characters, not 1 to {MAX_NAME_CHARACTERS}")
    return text


_queue_url = _text(r"https?://[^/\s]+/[^\s,]+", "a queue URL")
_count = _number(r"[1-9]\d{0,8}", "a whole number from 1 to 999999999")
_days = _number(r"[0-2]?\d{1,3}|3[0-5]\d\d|36[0-4]\d|3650", "a number of days from 0 to 3650")


def _columns(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in text.split(","):
        name, _, kind = each.strip().partition(":")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,127}", name) or kind not in ATTRIBUTE_TYPES:
            raise argparse.ArgumentTypeError(f"{each!r} is not name:type with a type of {', '.join(ATTRIBUTE_TYPES)}")
        if name.lower() in {*RESERVED, *map(str.lower, found)}:
            raise argparse.ArgumentTypeError(f"there is a column {name} already")
        found[name] = kind
    return found


def _seconds(text: str) -> float:
    return float(_text(r"\d{1,5}(\.\d{1,3})?", "a number of seconds")(text))


def _day(text: str, today: date) -> date:
    if text == "yesterday":
        return today - timedelta(days=1)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither YYYY-MM-DD nor yesterday") from None


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time as 2026-11-21T14:00:00Z") from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
