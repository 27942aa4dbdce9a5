"""Which columns a message can be made of: checked once, at plan time. Every complaint names its column."""

from collections.abc import Mapping

from pyspark.sql.types import BinaryType, DataType, IntegralType, MapType, StringType, StructType

from sluice_spark.errors import InvalidColumn, InvalidOption
from sluice_spark.sink.options import SinkOptions

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
    if "queue_url" not in types and len(options.queue_urls) != 1:
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
