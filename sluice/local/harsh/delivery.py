"""How standard queues deliver: twice, in any order, and not all that a short poll asks for."""

import time
from collections.abc import Mapping
from contextvars import ContextVar
from random import Random
from typing import Any

import ministack.services.sqs

from sluice.local.harsh.behaviours import Behaviours

WAIT, DEFAULT_WAIT = "WaitTimeSeconds", "ReceiveMessageWaitTimeSeconds"


def deliver_carelessly(behaviours: Behaviours, random: Random) -> None:
    """Let standard queues, and no FIFO queue, deliver as they may.

    A message "might be delivered more than once" and "out of order": a copy of a received one is received again, also
    after the first was deleted, and those that wait come in any order.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/standard-queues-at-least-once-delivery.html

    A short poll asks "only a subset of the servers" and "might not return all": each message may be missed. A trigger
    polls long, as does who waits.
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

    def collect_carelessly(queue: dict[str, Any], wanted: int, visibility_timeout_s: int) -> Any:
        if queue["is_fifo"]:
            return collect(queue, wanted, visibility_timeout_s)
        # The queue's own list stays as it is: other threads change it meanwhile.
        messages = list(queue["messages"])
        if polls_short.get():
            messages = [message for message in messages if random.random() >= behaviours.short_poll_misses]
        if random.random() < behaviours.reordered:
            random.shuffle(messages)
        received = collect({**queue, "messages": messages}, wanted, visibility_timeout_s)
        for message in received:
            if not message.get("is_copy") and random.random() < behaviours.duplicated:
                later_s = random.uniform(0, behaviours.scale_delay(behaviours.duplicate_within_s))
                # Another server still has the message, and knows nothing of this receive.
                copy = {"is_copy": True, "receipt_handle": None, "receive_count": message["receive_count"] - 1}
                queue["messages"].append({**message, **copy, "visible_at": time.time() + later_s})
        return received

    sqs._dispatch, sqs._collect_msgs = dispatch_poll, collect_carelessly  # noqa: SLF001 - see above


def _is_short(data: Mapping[str, Any], queue_url: str) -> bool:
    if data.get(WAIT) is not None:
        return not int(data[WAIT])
    sqs = ministack.services.sqs
    try:
        queue = sqs._get_q(data.get("QueueUrl") or queue_url)  # noqa: SLF001 - no public hook
    except sqs._Err:  # noqa: SLF001 - see above
        return True  # there is none, which the request is told
    return not int(queue["attributes"].get(DEFAULT_WAIT) or 0)
