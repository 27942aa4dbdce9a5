"""Options of the sink, and the columns that the sink accepts. Both are checked once, when Spark plans the query.

Every error names its option or its column. The options for queues, endpoint and identity are those of the source. Other
options of the source are ignored, so that one view serves SELECT and INSERT.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import BinaryType, DataType, IntegralType, MapType, StringType, StructType

from sluice_spark.errors import InvalidColumn, InvalidOption
from sluice_spark.options import (
    FLAG,
    NAMES,
    SINK_NAMES,
    Options,
    choice_parser,
    is_spark_internal,
    parse_options,
    parse_value,
)
from sluice_spark.sink.outgoing import Deduplication

CONNECTIONS_DEFAULT = 16  # number of connections per task
SHARED_OPTIONS = (
    "queueUrl",
    "region",
    "endpoint",
    "roleArn",
    "roleSessionName",
    "externalId",
    "profile",
    "maxConnections",
)
# Options of the query, which Spark passes to the sink too.
QUERY_OPTIONS = {"checkpointlocation", "queryname"}

_DEDUPLICATIONS: Mapping[str, Deduplication] = {"row": "row", "content": "content"}
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
# The source's columns that SQS sets for each message. The sink ignores them, so that INSERT INTO a view works.
RECEIVED_ONLY = {
    "message_id",
    "sequence_number",
    "sent_at",
    "first_received_at",
    "receive_count",
    "sender_id",
    "dead_letter_queue_source_arn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Checked options of a write. `queues` has the endpoint, the identity and the queues.

    One queue gets all rows. With several queues each row names one of these; with none, any queue.
    """

    queues: Options
    fail_on_error: bool = True
    deduplication: Deduplication = "row"


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse a write's options. Raises InvalidOption for unknown and malformed options."""
    values = {name.lower(): str(value).strip() for name, value in given.items()}
    values = {
        name: value for name, value in values.items() if name not in QUERY_OPTIONS and not is_spark_internal(name)
    }
    for name in values:
        if name not in SINK_NAMES and name not in NAMES:
            offered = sorted([*SHARED_OPTIONS, *SINK_NAMES.values()])
            raise InvalidOption(name, f"unknown; the sink has {', '.join(offered)}")
    shared = {name: values[name.lower()] for name in SHARED_OPTIONS if name.lower() in values}
    shared.setdefault("maxConnections", str(CONNECTIONS_DEFAULT))
    shared["stagingLocation"] = "/"  # The parser requires a location, but the sink doesn't use it.
    return SinkOptions(
        queues=parse_options(shared),
        fail_on_error=parse_value("failOnError", FLAG, values.get("failonerror", "true")),
        deduplication=parse_value("deduplication", choice_parser(_DEDUPLICATIONS), values.get("deduplication", "row")),
    )


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Check the columns of a frame to write.

    Raises InvalidColumn for a missing or unknown column, and for a column of an unsupported type.
    """
    types = {column.name: column.dataType for column in schema.fields}
    if "body" not in types:
        raise InvalidColumn("body", f"missing; there are {', '.join(types) or 'none'}")
    for name, kind in types.items():
        if name in RECEIVED_ONLY:
            continue
        if name not in COLUMNS:
            raise InvalidColumn(name, f"unknown, and would be lost; a message has {', '.join(COLUMNS)}")
        if not _has_type(COLUMNS[name], kind):
            raise InvalidColumn(name, f"is {kind.simpleString()}, not {COLUMNS[name]}")
    if "queue_url" not in types and len(options.queues.queue_urls) != 1:
        raise InvalidOption("queueUrl", "names one queue, or each row names its own in a column queue_url")


def _has_type(expected_type: str, actual_type: DataType) -> bool:
    if expected_type == ATTRIBUTES:
        if not isinstance(actual_type, MapType) or not isinstance(actual_type.keyType, StringType):
            return False
        if isinstance(actual_type.valueType, StructType):  # attributes in frames of the source
            return set(actual_type.valueType.names) <= {"type", "string", "binary"}
        return isinstance(actual_type.valueType, StringType | BinaryType)
    if expected_type == NUMBER:
        return isinstance(actual_type, IntegralType)
    return isinstance(actual_type, StringType) or (expected_type == BODY and isinstance(actual_type, BinaryType))
