"""Parses a function's SQS batch, reports the messages to redeliver, and dead-letters those that cannot succeed.

SQS moves messages to a dead-letter queue without a reason. So this module itself sends messages that can't succeed,
with the reason. The queue's own redrive policy remains for functions that crash.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, wait
from types import MappingProxyType
from typing import Any

import msgspec
from aws_lambda_powertools.logging import Logger
from msgspec.structs import replace

from sluice.aws.dead_letters import DeadLetters
from sluice.aws.queues import ReceivedQueues
from sluice.batches import HELD_BACK
from sluice.errors import CallFailed, HeldBack, SenderFault, SluiceError, describe_reason
from sluice.message import FIFO_SUFFIX, DeadLetter, Message, Outgoing

VISIBILITY_BATCH = 10  # SQS changes the visibility of at most ten messages in one request
VISIBILITY_TRIES = 2  # A request is tried twice. One throttle is much shorter than a visibility timeout.
VISIBILITY_TIMEOUT_S = 2.0
REDELIVERY_DELAYS_S = (5,)  # default delays in seconds: only the first failure of a message is redelivered early
MAX_RECEIVES = 3  # default number of receives before a message is dead-lettered; no queue's maxReceiveCount is lower

BatchResponse = dict[str, list[dict[str, str]]]  # Lambda's partial batch response: the messages to redeliver

logger = Logger()


class Batch(msgspec.Struct, frozen=True):
    """The messages of one Lambda event in their order, all from one queue. `source` is the queue's ARN."""

    source: str
    messages: tuple[Message, ...]

    @classmethod
    def parse(cls, event: Mapping[str, Any]) -> "Batch":
        """Parse an event of an SQS event source mapping."""
        records = event["Records"]
        return cls(records[0]["eventSourceARN"], tuple(map(Message.from_lambda, records)))

    @classmethod
    def try_parse(cls, event: Any) -> "Batch | None":
        """Parse an event of an SQS event source mapping; None for any other event, such as an operator's request."""
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
        """Whether the queue is a FIFO queue."""
        return self.source.endswith(FIFO_SUFFIX)


class Reporter(msgspec.Struct, frozen=True, kw_only=True):
    """Reports which messages of a batch to redeliver. `executor` handles records and dead letters in parallel.

    A transient error shouldn't block a message, or its message group, for the whole visibility timeout. So after each
    of its first failures, a message becomes visible after the next delay in `redelivery_delays_s`. After later failures
    it waits for its visibility timeout, because outages last. Without `received`, a message waits for its visibility
    timeout after every failure.
    """

    dead_letters: DeadLetters
    executor: Executor
    received: ReceivedQueues | None = None
    redelivery_delays_s: tuple[int, ...] = REDELIVERY_DELAYS_S

    def report(
        self,
        batch: Batch,
        failures: Mapping[int, Exception],
        *,
        max_receives: int = MAX_RECEIVES,
        redelivered_s: Mapping[int, int] = MappingProxyType({}),
    ) -> BatchResponse:
        """Return the response for Lambda, given the failed messages' errors by position.

        `redelivered_s` has the positions of messages that didn't fail, with the seconds until their redelivery.

        A message becomes a dead letter after a sender's fault, or if it fails at its `max_receives`th receive. A
        message that is only held back never becomes a dead letter. If a dead letter can't be sent, its message is
        redelivered.
        """

        def must_redeliver(position: int) -> bool:
            message, fault = batch.messages[position], failures[position]
            log_fields: dict[str, Any] = {"message_id": message.message_id, "receives": message.receive_count}
            # The trace header identifies the message in the logs of all sites.
            log_fields |= {"reason": str(fault), "trace_header": message.trace_header}
            if isinstance(fault, HeldBack):
                logger.info("RecordHeldBack", **log_fields)
                return True
            logger.warning("RecordFailed", **log_fields, exc_info=None if isinstance(fault, SluiceError) else fault)
            if message.receive_count < max_receives and not isinstance(fault, SenderFault):
                return True
            try:
                self.dead_letter(batch, position, describe_reason(fault))
            except Exception:  # After any error, this message is redelivered and the other messages are still reported.
                logger.exception("DeadLetterNotSent", message_id=message.message_id)
                return True
            return False

        if not failures and not redelivered_s:
            return {"batchItemFailures": []}
        positions = sorted(failures)
        staying = zip(positions, self.executor.map(must_redeliver, positions), strict=True)
        again = [batch.messages[position] for position, is_redelivered in staying if is_redelivered]
        delays_s = {
            message.receipt_handle: self.redelivery_delays_s[message.receive_count - 1]
            for message in again
            if message.receive_count <= len(self.redelivery_delays_s)
        }
        for position, delay_s in redelivered_s.items():
            again.append(batch.messages[position])
            delays_s[batch.messages[position].receipt_handle] = delay_s
        self._redeliver_early(batch, delays_s)
        return {"batchItemFailures": [{"itemIdentifier": message.message_id} for message in again]}

    def serve(
        self, batch: Batch, handle_message: Callable[[Message], None], *, max_receives: int = MAX_RECEIVES
    ) -> BatchResponse:
        """Handle each message by itself, and report the failed messages for redelivery.

        The messages of a standard queue are handled in parallel on the executor's threads. Those of a FIFO queue are
        handled one after the other, and a failed message holds back later messages of its group.
        """

        def outcome(message: Message) -> Exception | None:
            try:
                handle_message(message)
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

    def _redeliver_early(self, batch: Batch, delays_s: Mapping[str, int]) -> None:
        """Make messages visible again soon. On failure, their visibility timeout makes them visible later."""
        received = self.received
        if received is None:
            return

        def change_visibility(receipt_handles: Sequence[str]) -> None:
            for _ in range(VISIBILITY_TRIES):
                try:
                    received.change_visibility(batch.source, {handle: delays_s[handle] for handle in receipt_handles})
                except CallFailed as error:
                    logger.warning("VisibilityNotChanged", reason=str(error))
                else:
                    return

        handles = list(delays_s)
        shown = [
            self.executor.submit(change_visibility, handles[start : start + VISIBILITY_BATCH])
            for start in range(0, len(handles), VISIBILITY_BATCH)
        ]
        # The response must not be late, because Lambda would then redeliver the whole batch.
        for late in wait(shown, timeout=VISIBILITY_TIMEOUT_S).not_done:
            late.cancel()

    def dead_letter(self, batch: Batch, position: int, reason: str) -> None:
        """Send a message of the batch to the dead-letter queue. Raises `CallFailed`."""
        self.dead_letters.send(DeadLetter(message=batch.messages[position], reason=reason, source=batch.source))

    def dead_letter_copy(self, batch: Batch, position: int, copy: Outgoing, *, queue: str, reason: str) -> None:
        """Send a message's copy that couldn't be delivered to one of the site's queues to the dead-letter queue.

        The dead letter names that queue as its source, so a redrive returns the copy only to that queue. Raises
        `CallFailed`.
        """
        message = replace(batch.messages[position], body=copy.body, attributes=copy.attributes)
        source = f"{batch.source.rsplit(':', 1)[0]}:{queue}"
        self.dead_letters.send(DeadLetter(message=message, reason=reason, source=source))
