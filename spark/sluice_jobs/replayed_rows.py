"""Converts landed messages to rows for the sink, in executors of job *replay*.

Executors lack the packages that only drivers import, so this module can't import the tables' modules.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.sql import Row
from sluice.errors import Malformed, TooLarge
from sluice.federation.matching.metadata import ATTRIBUTE, Metadata, OpenedAttributes, open_attributes, seal_attributes
from sluice.message import FIFO_SUFFIX, Value

from sluice_spark.sink.outgoing import DeduplicationIds, RowPosition, UnsentRow, WriteContext, build_message

ID_ATTRIBUTE = "sluice-replayed"
_GROUP_CHARACTERS = 32
PARTS_PER_SECOND = 4  # number of sleeps per second under a rate limit

Message = TypeVar("Message")
# The fields of the sink's rows, in order. For an unsendable message only the last field is set: id and reason.
SinkRow = tuple[Any, ...]


def convert_rows(rows: Iterable[Row], *, exchange: str, rate: int | None, queue_url: str) -> Iterator[SinkRow]:
    """Convert a partition's messages to rows for the sink, on average at most `rate` messages per second."""
    sink_rows = (_build_sink_row(row.asDict(recursive=True), exchange, queue_url) for row in rows)
    return sink_rows if rate is None else limit_rate(sink_rows, rate)


def _build_sink_row(row: Mapping[str, Any], exchange: str, queue_url: str) -> SinkRow:
    """Build the sink's row for a message; a message that the sink would refuse becomes an unsendable row.

    For a standard queue the row has no deduplication id, and a message group only if the message had one.
    """
    fifo = queue_url.endswith(FIFO_SUFFIX)
    try:
        message = build_replayed_message(row, exchange)
    except (TooLarge, ValueError) as error:
        return _mark_unsendable(row, str(error))
    fields = {
        "body": row["body"],
        "attributes": message.attributes,
        "message_group_id": message.group_id if fifo else row["message_group_id"],
        "message_deduplication_id": message.deduplication_id if fifo else None,
        "trace_header": row["trace_header"],
    }
    checked = build_message(fields, RowPosition(0, 0), WriteContext(queue_urls=(queue_url,), ids=DeduplicationIds("")))
    return _mark_unsendable(row, checked.reason) if isinstance(checked, UnsentRow) else (*fields.values(), None)


def _mark_unsendable(row: Mapping[str, Any], why: str) -> SinkRow:
    return (None,) * 5 + (f"{row['message_id']}: {why}",)


def limit_rate(messages: Iterable[Message], rate: int) -> Iterator[Message]:
    """Yield the messages, on average at most `rate` messages per second since the first message."""
    size = max(1, rate // PARTS_PER_SECOND)
    started = time.monotonic()
    for index, message in enumerate(messages):
        if index % size == 0:
            time.sleep(max(0.0, started + index / rate - time.monotonic()))
        yield message


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedMessage:
    """The attributes and ids of a message to replay. Attributes have the source's fields `type`, `string`, `binary`."""

    attributes: Mapping[str, Mapping[str, Any]]
    group_id: str
    deduplication_id: str


def build_replayed_message(row: Mapping[str, Any], exchange: str) -> ReplayedMessage:
    """Build the attributes and ids to send a message again. Raises TooLarge if the metadata doesn't fit.

    `row` has `message_id`, `body`, `attributes` and `message_group_id` as received, `routing_key` and `origin_id` as
    landed. The replay id is the message's id at its first exchange, else its SQS id, so it is the same at every replay.
    """
    attributes = {
        name: Value(
            attribute["type"], attribute["string"] if attribute["binary"] is None else bytes(attribute["binary"])
        )
        for name, attribute in (row["attributes"] or {}).items()
    }
    try:
        opened = open_attributes(attributes)
    except Malformed:  # This happens only in tables that another program wrote.
        user = {name: value for name, value in attributes.items() if name != ATTRIBUTE}
        opened = OpenedAttributes(attributes=user, metadata=None)
    known_as, key, claimed = row["origin_id"] or row["message_id"], row["routing_key"] or "", opened.metadata
    metadata = Metadata(
        exchange=exchange,
        key=key,
        message_id=claimed.message_id if claimed else None,
        headers=claimed.headers if claimed else {},
    )
    sealed = seal_attributes(row["body"], {**opened.attributes, ID_ATTRIBUTE: Value("String", known_as)}, metadata)
    group_id = row["message_group_id"] or hashlib.sha256(f"{exchange}\0{key}".encode()).hexdigest()[:_GROUP_CHARACTERS]
    return ReplayedMessage(
        attributes={
            name: {
                "type": value.data_type,
                "string": value.text,
                "binary": value.content if isinstance(value.content, bytes) else None,
            }
            for name, value in sealed.items()
        },
        group_id=group_id,
        deduplication_id=hashlib.sha256(f"{exchange}\0{known_as}".encode()).hexdigest(),
    )
