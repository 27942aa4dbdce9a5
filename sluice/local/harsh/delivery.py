"""Imitates how standard queues can deliver messages: duplicates, any order, and short polls that miss messages."""

import time
from collections.abc import Mapping
from contextvars import ContextVar
from random import Random
from typing import Any

import ministack.services.sqs

from sluice.local.harsh.behaviours import Behaviours

WAIT, DEFAULT_WAIT = "WaitTimeSeconds", "ReceiveMessageWaitTimeSeconds"


def deliver_unreliably(behaviours: Behaviours, random: Random) -> None:
    """Deliver standard queues' messages twice, in any order, or not to a short poll. FIFO queues are unaffected.

    On AWS a message "might be delivered more than once" and "out of order". Here a copy of a received message is
    delivered again, even after the original was deleted, and waiting messages are delivered in random order.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/standard-queues-at-least-once-delivery.html

    A short poll asks "only a subset of the servers" and "might not return all" messages, so here it may miss each
    message. Long polls, such as those of triggers, miss none.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-short-and-long-polling.html
    """
    sqs = ministack.services.sqs
    dispatch, collect = sqs._dispatch, sqs._collect_msgs  # noqa: SLF001 - no public hook
    polls_short: ContextVar[bool] = ContextVar("polls_short", default=False)

    async def dispatch_poll(action: str, data: dict[str, Any], queue_url: str) -> Any:
        token = polls_short.set(action == "ReceiveMessage" and _is_short(data, queue_url))
        try:
            return await dispatch(action, data, queue_url)
        finally:
            polls_short.reset(token)

    def collect_in_disorder(queue: dict[str, Any], wanted: int, visibility_timeout_s: int) -> Any:
        if queue["is_fifo"]:
            return collect(queue, wanted, visibility_timeout_s)
        # Only a copy of the queue's list is shuffled, because other threads change the list meanwhile.
        messages = list(queue["messages"])
        if polls_short.get():
            messages = [message for message in messages if random.random() >= behaviours.short_poll_misses]
        if random.random() < behaviours.reordered:
            random.shuffle(messages)
        received = collect({**queue, "messages": messages}, wanted, visibility_timeout_s)
        for message in received:
            if not message.get("is_copy") and random.random() < behaviours.duplicated:
                later_s = random.uniform(0, behaviours.scale_delay(behaviours.duplicate_within_s))
                # The copy imitates the same message on another server of SQS, which doesn't know of this receive.
                copy = {"is_copy": True, "receipt_handle": None, "receive_count": message["receive_count"] - 1}
                queue["messages"].append({**message, **copy, "visible_at": time.time() + later_s})
        return received

    sqs._dispatch, sqs._collect_msgs = dispatch_poll, collect_in_disorder  # noqa: SLF001 - see above


def limit_in_flight(limit: int) -> None:
    """Deliver no message of a queue that has reached the limit of messages in flight.

    At the limit of "approximately 120,000 in flight messages" SQS answers short polls of standard queues with
    `OverLimit`. Here every poll is empty, as long polls and those of FIFO queues are on AWS.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-queues.html
    """
    sqs = ministack.services.sqs
    collect = sqs._collect_msgs  # noqa: SLF001 - no public hook

    def collect_within_limit(queue: dict[str, Any], wanted: int, visibility_timeout_s: int) -> Any:
        messages, now = queue["messages"], time.time()
        if len(messages) >= limit:
            in_flight = sum(message["receive_count"] > 0 and message["visible_at"] > now for message in messages)
            return collect(queue, min(wanted, max(0, limit - in_flight)), visibility_timeout_s)
        return collect(queue, wanted, visibility_timeout_s)

    sqs._collect_msgs = collect_within_limit  # noqa: SLF001 - see above


def _is_short(data: Mapping[str, Any], queue_url: str) -> bool:
    if data.get(WAIT) is not None:
        return not int(data[WAIT])
    sqs = ministack.services.sqs
    try:
        queue = sqs._get_q(data.get("QueueUrl") or queue_url)  # noqa: SLF001 - no public hook
    except sqs._Err:  # noqa: SLF001 - see above
        return True  # The request itself reports that the queue doesn't exist.
    return not int(queue["attributes"].get(DEFAULT_WAIT) or 0)
