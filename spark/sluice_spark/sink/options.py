"""The sink's options, and which columns a message can be made of: checked once, at plan time.

Every complaint names its option or its column. What says where SQS is and as whom to call is spelt and parsed as the
source's. The source's other options are passed over: one view serves SELECT and INSERT.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import BinaryType, DataType, IntegralType, MapType, StringType, StructType

from sluice_spark.errors import InvalidColumn, InvalidOption
from sluice_spark.options import FLAG, NAMES, SINK_NAMES, Options, one_of, parsed, read, sparks_own
from sluice_spark.sink.outgoing import Deduplication

CONNECTIONS_DEFAULT = 16  # of each task
SHARED = ("queueUrl", "region", "endpoint", "roleArn", "roleSessionName", "externalId", "profile", "maxConnections")
# Spark hands on what was said to the query, and what is said of a table
QUERYS_OWN = {"checkpointlocation", "queryname"}

_OFFERED: Mapping[str, Deduplication] = {"position": "position", "content": "content"}
TEXT, NUMBER, BODY, ATTRIBUTES = "a string", "a whole number", "a string or binary", "a map"
COLUMNS: Mapping[str, str] = {
    "body": BODY,
    "attributes": ATTRIBUTES,
    "message_group_id": TEXT,
    "message_deduplication_id": TEXT,
    "delay_seconds": NUMBER,
    "queue_url": TEXT,
    "trace_header": TEXT,
}
# Columns of the source that SQS fills in anew for each message: not sent, so that INSERT INTO a view works
RECEIVED_ONLY = {"message_id", "sequence_number", "sent_at", "first_received_at", "receive_count", "sender_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Parsed and in range. `queues` says where SQS is, and as whom to call.

    It names no queue, and each row names its own; one, for all; several, of which rows name one.
    """

    queues: Options
    fail_on_error: bool = True
    deduplication: Deduplication = "position"


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse a write's options. Raises InvalidOption: unknown, malformed, out of range."""
    values = {name.lower(): str(value).strip() for name, value in given.items()}
    values = {name: value for name, value in values.items() if name not in QUERYS_OWN and not sparks_own(name)}
    for name in values:
        if name not in SINK_NAMES and name not in NAMES:
            offered = sorted([*SHARED, *SINK_NAMES.values()])
            raise InvalidOption(name, f"unknown; the sink has {', '.join(offered)}")
    shared = {name: values[name.lower()] for name in SHARED if name.lower() in values}
    shared.setdefault("maxConnections", str(CONNECTIONS_DEFAULT))
    return SinkOptions(
        queues=parsed({**shared, "stagingLocation": "/"}),  # the source's parser wants a place; the sink stages nothing
        fail_on_error=read("failOnError", FLAG, values.get("failonerror", "true")),
        deduplication=read("deduplication", one_of(_OFFERED), values.get("deduplication", "position")),
    )


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Check the columns.

    Raises InvalidColumn for one that is missing, unknown, or of a type that no message can be made of.
    """
    types = {column.name: column.dataType for column in schema.fields}
    if "body" not in types:
        raise InvalidColumn("body", f"missing; there are {', '.join(types) or 'none'}")
    for name, kind in types.items():
        if name in RECEIVED_ONLY:
            continue
        if name not in COLUMNS:
            raise InvalidColumn(name, f"unknown, and would be lost; a message has {', '.join(COLUMNS)}")
        if not _fits(COLUMNS[name], kind):
            raise InvalidColumn(name, f"is {kind.simpleString()}, not {COLUMNS[name]}")
    if "queue_url" not in types and len(options.queues.queue_urls) != 1:
        raise InvalidOption("queueUrl", "names one queue, or each row names its own in a column queue_url")


def _fits(wanted: str, kind: DataType) -> bool:
    if wanted == ATTRIBUTES:
        return isinstance(kind, MapType) and isinstance(kind.keyType, StringType) and _attribute_fits(kind.valueType)
    if wanted == NUMBER:
        return isinstance(kind, IntegralType)
    return isinstance(kind, StringType) or (wanted == BODY and isinstance(kind, BinaryType))


def _attribute_fits(kind: DataType) -> bool:
    """Take a string, bytes, or what the source gives: {type, string, binary}."""
    if isinstance(kind, StructType):
        return set(kind.names) <= {"type", "string", "binary"}
    return isinstance(kind, StringType | BinaryType)
