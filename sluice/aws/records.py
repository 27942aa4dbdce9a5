"""Parses a function's SQS batch, reports the messages to redeliver, and dead-letters those that cannot succeed.

SQS moves a message to a dead-letter queue without a word. So whatever can't succeed is sent there by us, with the
reason; the queue's own redrive is the net under it, for functions that die.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, wait
from typing import Any

import msgspec
from aws_lambda_powertools.logging import Logger
from msgspec.structs import replace

from sluice.aws.dead_letters import DeadLetters
from sluice.aws.queues import ReceivedQueues
from sluice.batches import HELD_BACK
from sluice.errors import CallFailed, HeldBack, SenderFault, SluiceError, dead_letter_text
from sluice.message import DeadLetter, Message, Outgoing

HASTENED_AT_ONCE = 10  # by one request
HASTENED_WITHIN_S = 2.0
AGAIN_AFTER_S = (5,)  # where a function says nothing else; at the first failure
MAX_RECEIVES = 3  # where a function says nothing else; no queue redrives sooner
FIFO_SUFFIX = ".fifo"

BatchResponse = dict[str, list[dict[str, str]]]  # which of a batch's messages are to come again, for Lambda

logger = Logger()


class Batch(msgspec.Struct, frozen=True):
    """The messages of one event, which are all of one queue, in order. `source` is its ARN."""

    source: str
    messages: tuple[Message, ...]

    @classmethod
    def parse(cls, event: Mapping[str, Any]) -> "Batch":
        """Read an event of an SQS event source mapping."""
        records = event["Records"]
        return cls(records[0]["eventSourceARN"], tuple(map(Message.from_lambda, records)))

    @classmethod
    def try_parse(cls, event: Any) -> "Batch | None":
        """Read an event that is one of an SQS event source mapping; None for what an operator asks, whatever it is."""
        match event:
            case {"Records": [{"eventSourceARN": str()}, *_]}:
                return cls.parse(event)
        return None

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.source.rsplit(":", 1)[1]

    @property
    def fifo(self) -> bool:
        """Whether the queue keeps order."""
        return self.source.endswith(FIFO_SUFFIX)


class Reporter(msgspec.Struct, frozen=True, kw_only=True):
    """Says what of a batch is to come again. `executor` is for records and dead letters side by side.

    What passes in seconds needn't wait for the time-out of a message, nor all of its group with it: what has failed for
    the first time, or as often as `again_after_s` has waits, is shown by `received` after that. Then it waits for its
    time-out, as outages last. Without `received` all does, always.
    """

    dead_letters: DeadLetters
    executor: Executor
    received: ReceivedQueues | None = None
    again_after_s: tuple[int, ...] = AGAIN_AFTER_S

    def report(
        self, batch: Batch, failures: Mapping[int, Exception], *, max_receives: int = MAX_RECEIVES
    ) -> BatchResponse:
        """Answer Lambda, given by position what failed and why.

        What failed by its sender's fault, or for the `max_receives`th time, becomes a dead letter; what is only held
        back never does. A dead letter that can't be sent comes again.
        """

        def stays(position: int) -> bool:
            message, fault = batch.messages[position], failures[position]
            if isinstance(fault, HeldBack):
                logger.info(
                    "RecordHeldBack",
                    message_id=message.message_id,
                    receives=message.receive_count,
                    reason=str(fault),
                    trace_header=message.trace_header,
                )
                return True
            logger.warning(
                "RecordFailed",
                message_id=message.message_id,
                receives=message.receive_count,
                reason=str(fault),
                trace_header=message.trace_header,  # by which a message is found on its whole way
                exc_info=None if isinstance(fault, SluiceError) else fault,
            )
            if message.receive_count < max_receives and not isinstance(fault, SenderFault):
                return True
            try:
                self.bury(batch, position, dead_letter_text(fault))
            except Exception:  # whatever it was, the message stays, and the others are reported as they are
                logger.exception("DeadLetterNotSent", message_id=message.message_id)
                return True
            return False

        if not failures:
            return {"batchItemFailures": []}
        positions = sorted(failures)
        staying = zip(positions, self.executor.map(stays, positions), strict=True)
        again = [batch.messages[position] for position, stay in staying if stay]
        self._hasten(batch, again)
        return {"batchItemFailures": [{"itemIdentifier": message.message_id} for message in again]}

    def serve(
        self, batch: Batch, handle: Callable[[Message], None], *, max_receives: int = MAX_RECEIVES
    ) -> BatchResponse:
        """Handle each message by itself and report those that raised.

        Of a standard queue as many at once as the executor has threads; of a FIFO queue one after the other, and what
        follows a failed one of its group waits for it.
        """

        def outcome(message: Message) -> Exception | None:
            try:
                handle(message)
            except Exception as error:  # noqa: BLE001 - the record is reported as failed, whatever it was
                return error
            return None

        if not batch.fifo:
            outcomes = enumerate(self.executor.map(outcome, batch.messages))
            failures = {position: error for position, error in outcomes if error is not None}
            return self.report(batch, failures, max_receives=max_receives)
        failures, waiting = {}, set()
        for position, message in enumerate(batch.messages):
            error = HeldBack(HELD_BACK) if message.group_id in waiting else outcome(message)
            if error is not None:
                failures[position] = error
                if not isinstance(error, SenderFault):
                    waiting.add(message.group_id)
        return self.report(batch, failures, max_receives=max_receives)

    def _hasten(self, batch: Batch, messages: Sequence[Message]) -> None:
        """Have what failed shown again soon. What can't be, comes when its time is out."""
        received = self.received
        if received is None:
            return
        waits_s = {
            message.receipt_handle: self.again_after_s[message.receive_count - 1]
            for message in messages
            if message.receive_count <= len(self.again_after_s)
        }

        def show(few: Sequence[str]) -> None:
            try:
                received.show_again(batch.source, {handle: waits_s[handle] for handle in few})
            except CallFailed as error:
                logger.warning("NotHastened", reason=str(error))

        handles = list(waits_s)
        shown = [
            self.executor.submit(show, handles[start : start + HASTENED_AT_ONCE])
            for start in range(0, len(handles), HASTENED_AT_ONCE)
        ]
        # The answer to Lambda matters more: one that comes too late lets all of the batch come again.
        for late in wait(shown, timeout=HASTENED_WITHIN_S).not_done:
            late.cancel()

    def bury(self, batch: Batch, position: int, reason: str) -> None:
        """Send a message of the batch to the dead letters. Raises `CallFailed`."""
        self.dead_letters.bury(DeadLetter(message=batch.messages[position], reason=reason, source=batch.source))

    def bury_copy(self, batch: Batch, position: int, copy: Outgoing, *, queue: str, reason: str) -> None:
        """Send what another queue of the site was to have of a message to the dead letters. Raises `CallFailed`.

        It says that it was in that queue: should it be put back, it goes there, and to no other.
        """
        message = replace(batch.messages[position], body=copy.body, attributes=copy.attributes)
        source = f"{batch.source.rsplit(':', 1)[0]}:{queue}"
        self.dead_letters.bury(DeadLetter(message=message, reason=reason, source=source))
