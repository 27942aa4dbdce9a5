"""Imitates the delays after a queue is created or deleted."""

import re
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import ministack.core.responses
import ministack.services.cloudformation.provisioners
import ministack.services.sqs

from sluice.local.harsh.behaviours import Behaviours

Queue = tuple[str, str, str]  # account, region and name of a queue
NOT_THERE = "The specified queue does not exist."
DELETED_RECENTLY = "You must wait 60 seconds after deleting a queue before you can create another with the same name."
SENDS = frozenset({"SendMessage", "SendMessageBatch"})
WITHOUT_QUEUE = frozenset({"CreateQueue", "ListQueues"})
MAX_REMEMBERED = 10_000  # maximum number of queues whose delays are remembered; the oldest are forgotten


def delay_queues(behaviours: Behaviours, random: Random) -> Callable[[str], bool]:
    """Hide a new queue for some seconds, and refuse to create a queue with a deleted queue's name for some seconds.

    Returns a function that takes the ARN of a queue in the request's region, and returns whether the queue is visible.

    "After you create a queue, you must wait at least one second after the queue is created to be able to use the
    queue". Until then requests fail with the error that the queue does not exist.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html

    "If you delete a queue, you must wait at least 60 seconds before creating a queue with the same name", and requests
    that involve it "might succeed" in these 60 seconds. Messages sent then are lost.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_DeleteQueue.html
    """
    sqs = ministack.services.sqs
    dispatch = sqs._dispatch  # noqa: SLF001 - no public hook
    visible_times: dict[Queue, float] = {}
    name_free_times: dict[Queue, float] = {}

    async def dispatch_later(action: str, data: dict[str, Any], queue_url: str) -> Any:
        queue = _identify_request_queue(data, queue_url)
        now = time.monotonic()
        if action not in WITHOUT_QUEUE and now < visible_times.get(queue, 0):
            raise sqs._Err("QueueDoesNotExist", NOT_THERE)  # noqa: SLF001 - see above
        taken = now < name_free_times.get(queue, 0)
        if action == "CreateQueue" and taken:
            raise sqs._Err("QueueDeletedRecently", DELETED_RECENTLY)  # noqa: SLF001 - see above
        is_new = action == "CreateQueue" and not sqs._queue_name_to_url.get(queue[2])  # noqa: SLF001 - see above
        try:
            result = await dispatch(action, data, queue_url)
        except sqs._Err as error:  # noqa: SLF001 - see above
            is_lost = taken and error.code == "QueueDoesNotExist" and action in SENDS
            if not (is_lost and random.random() < behaviours.deleted_queue_takes):
                raise
            # The response is the same as if the queue existed, but the message is lost.
            receipts = [_fake_receipt(entry) for entry in data.get("Entries", [data])]
            return receipts[0] if action == "SendMessage" else {"Successful": receipts, "Failed": []}
        is_late = is_new and random.random() < behaviours.queue_appears_late
        if is_late and not re.fullmatch(behaviours.queues_there_at_once, queue[2]):
            _remember(visible_times, queue, now + behaviours.scale_delay(behaviours.queue_appears_s))
        if action == "DeleteQueue":
            _remember(name_free_times, queue, now + behaviours.scale_delay(behaviours.queue_name_taken_s))
        return result

    def queue_exists(arn: str) -> bool:
        _, _, _, region, account, name = arn.split(":")
        exists = sqs._queue_by_arn(arn) is not None  # noqa: SLF001 - see above
        return exists and time.monotonic() >= visible_times.get((account, region, name), 0)

    sqs._dispatch = dispatch_later  # noqa: SLF001 - see above
    _delay_stacks(behaviours, name_free_times)
    return queue_exists


def _delay_stacks(behaviours: Behaviours, name_free_times: dict[Queue, float]) -> None:
    """Refuse deleted queues' names in stacks, too.

    If a template gives no name, AWS generates a new name each time. ministack generates equal names, free at once.
    """
    table = ministack.services.cloudformation.provisioners._RESOURCE_HANDLERS["AWS::SQS::Queue"]  # noqa: SLF001 - no public hook
    create, delete = table["create"], table["delete"]

    def provision_later(logical_id: str, properties: dict[str, Any], *rest: Any) -> Any:
        if time.monotonic() < name_free_times.get(_identify_queue(str(properties.get("QueueName"))), 0):
            raise ValueError(f"QueueDeletedRecently: {DELETED_RECENTLY}")
        return create(logical_id, properties, *rest)

    def delete_and_reserve(physical_id: str, properties: dict[str, Any]) -> Any:
        until = time.monotonic() + behaviours.scale_delay(behaviours.queue_name_taken_s)
        _remember(name_free_times, _identify_queue(physical_id.rsplit("/", 1)[-1]), until)
        return delete(physical_id, properties)

    table["create"], table["delete"] = provision_later, delete_and_reserve


def _identify_queue(name: str) -> Queue:
    responses = ministack.core.responses
    return responses.get_account_id(), responses.get_region(), name


def _identify_request_queue(data: Mapping[str, Any], queue_url: str) -> Queue:
    """Return account, region and name of the queue that a request names by URL or by name."""
    sqs, responses = ministack.services.sqs, ministack.core.responses
    account, name = sqs._queue_ref_from_urlish(str(data.get("QueueUrl") or queue_url or ""))  # noqa: SLF001
    name = name or str(data.get("QueueName", ""))
    account = account or data.get("QueueOwnerAWSAccountId") or responses.get_account_id()
    return account, responses.get_region(), name


def _fake_receipt(entry: Mapping[str, Any]) -> dict[str, Any]:
    sqs = ministack.services.sqs
    body = str(entry.get("MessageBody", "")).encode()
    receipt = {"MessageId": sqs.new_uuid(), "MD5OfMessageBody": sqs.hashlib.md5(body).hexdigest()}
    digest = sqs._md5_msg_attrs(entry.get("MessageAttributes"))  # noqa: SLF001 - what SDKs check an answer by
    of_batch = {"Id": entry["Id"]} if "Id" in entry else {}
    return receipt | of_batch | ({"MD5OfMessageAttributes": digest} if digest else {})


def _remember(times: dict[Queue, float], queue: Queue, time_: float) -> None:
    times.pop(queue, None)
    times[queue] = time_
    if len(times) > MAX_REMEMBERED:
        del times[next(iter(times))]
