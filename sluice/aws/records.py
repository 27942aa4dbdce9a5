"""A batch of SQS records through a handler: side by side, with partial failures, and dead letters that say why.

SQS moves a message to a dead-letter queue without a word. So whatever can't succeed is sent there by us, with the
reason; the queue's own redrive is the net under it, for functions that die.
"""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from sluice.aws.clients import calls
from sluice.errors import HeldBack, SenderFault
from sluice.message import trace_attributes

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient

MAX_RECEIVES = 3  # the redrive policy of every queue that a function reads
MAX_ATTRIBUTES = 10  # of SQS
REASON = "sluice-reason"
SOURCE = "sluice-source"
PACKED = "sluice-attributes"  # JSON of all attributes, where two more would be too many
MAX_REASON = 1_000  # characters

logger = Logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """Where messages go that can't succeed."""

    client: "SQSClient"
    url: str

    def send(self, record: SQSRecord, reason: str) -> None:
        """Sends the message on, body, attributes and trace as they were, with the reason and its queue."""
        with calls("SendMessage"):
            self.client.send_message(
                QueueUrl=self.url,
                MessageBody=record.body,
                MessageAttributes=dead_letter_attributes(
                    record.raw_event.get("messageAttributes", {}), reason=reason, source=record.event_source_arn
                ),
                # boto3's type is a TypedDict of the same fields.
                MessageSystemAttributes=trace_attributes(record.attributes.aws_trace_header),  # type: ignore[arg-type]
            )


def dead_letter_attributes(original: Mapping[str, Any], *, reason: str, source: str) -> dict[str, Any]:
    """The attributes of a dead letter, from those of a record as Lambda spells them."""
    kept = {name: _as_sqs_spells(value) for name, value in original.items()}
    if len(kept) > MAX_ATTRIBUTES - 2:
        kept = {PACKED: _string(json.dumps(dict(original)))}
    return kept | {REASON: _string(reason[:MAX_REASON]), SOURCE: _string(source)}


def _as_sqs_spells(value: Mapping[str, Any]) -> dict[str, Any]:
    """`dataType` to `DataType`, and so on; the empty lists that Lambda adds are left out."""
    return {name[0].upper() + name[1:]: part for name, part in value.items() if part not in ([], None)}


def _string(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def process(
    event: dict[str, Any],
    context: LambdaContext,
    *,
    handle: Callable[[SQSRecord], None],
    dead_letters: DeadLetters,
    executor: Executor,
    max_receives: int = MAX_RECEIVES,
) -> PartialItemFailureResponse:
    """Handles every record of an SQS event, all at once, and reports those that are to come again.

    A record that fails for the `max_receives`th time, or by its sender's fault, becomes a dead letter.
    """

    def handle_or_bury(record: SQSRecord) -> None:
        try:
            handle(record)
        except Exception as error:  # the record is reported as failed, whatever it was
            receives = int(record.attributes.approximate_receive_count)
            logger.exception("RecordFailed", message_id=record.message_id, receives=receives)
            if isinstance(error, HeldBack) or (receives < max_receives and not isinstance(error, SenderFault)):
                raise
            dead_letters.send(record, f"{type(error).__name__}: {error}")

    waiting = {record["messageId"]: executor.submit(handle_or_bury, SQSRecord(record)) for record in event["Records"]}
    return process_partial_response(
        event=event,
        record_handler=lambda record: waiting[record.message_id].result(),
        # A batch that fails whole is reported like any other: raising would only hide which records failed.
        processor=BatchProcessor(EventType.SQS, raise_on_entire_batch_failure=False),
        context=context,
    )
