"""Fails valid calls and entries of batches: at random, or above a rate."""

import re
import time
from collections import Counter
from random import Random
from typing import Any

import ministack.core.responses
import ministack.services.dynamodb
import ministack.services.iam
import ministack.services.lambda_svc
import ministack.services.sqs
import ministack.services.ssm

from sluice.local.harsh.behaviours import Behaviours

ITEM_ACTION = re.compile(r"Query|Scan|\w+Items?")  # DynamoDB's actions on items; other actions are on tables
PARAMETER_READS = frozenset({"GetParameter", "GetParameters", "GetParametersByPath"})
MAX_ENTRIES = 10
BATCHES = frozenset({"SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"})
THROUGHPUT_EXCEEDED = (
    "The level of configured provisioned throughput for the table was exceeded. Consider increasing your provisioning "
    "level with the UpdateTable API."
)


def throttle(behaviours: Behaviours, random: Random) -> None:
    """Refuse calls at random, before they have an effect, with the throttling error of their service.

    SQS: RequestThrottled. https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html
    DynamoDB: ProvisionedThroughputExceededException for items, ThrottlingException for tables.
    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.Errors.html
    Lambda: TooManyRequestsException. https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html IAM: Throttling.
    https://docs.aws.amazon.com/IAM/latest/APIReference/CommonErrors.html
    """
    sqs, dynamodb = ministack.services.sqs, ministack.services.dynamodb
    iam, functions = ministack.services.iam, ministack.services.lambda_svc
    dispatch = sqs._dispatch  # noqa: SLF001 - no public hook

    def should_refuse() -> bool:
        return random.random() < behaviours.throttled

    async def dispatch_throttled(action: str, data: dict[str, Any], queue_url: str) -> Any:
        if should_refuse():
            raise sqs._Err("RequestThrottled", "The request was denied due to request throttling.")  # noqa: SLF001
        return await dispatch(action, data, queue_url)

    def throttle_service(service: Any, build_refusal: Any) -> None:
        handle = service.handle_request

        async def handle_throttled(method: str, path: str, headers: dict[str, str], body: bytes, query: Any) -> Any:
            if should_refuse():
                return build_refusal(headers.get("x-amz-target", "").rpartition(".")[2])
            return await handle(method, path, headers, body, query)

        service.handle_request = handle_throttled

    def build_dynamodb_refusal(action: str) -> Any:
        if ITEM_ACTION.fullmatch(action):
            return dynamodb.error_response_json("ProvisionedThroughputExceededException", THROUGHPUT_EXCEEDED, 400)
        return dynamodb.error_response_json("ThrottlingException", "Rate exceeded", 400)

    sqs._dispatch = dispatch_throttled  # noqa: SLF001 - see above
    throttle_service(dynamodb, build_dynamodb_refusal)
    throttle_service(
        functions, lambda _: functions.error_response_json("TooManyRequestsException", "Rate Exceeded.", 429)
    )
    throttle_service(iam, lambda _: iam._error(400, "Throttling", "Rate exceeded", ns="iam"))  # noqa: SLF001 - see above


def limit_parameter_reads(limit_per_s: int) -> None:
    """Refuse reads of Parameter Store above the throughput of an account and region, with ThrottlingException.

    https://docs.aws.amazon.com/general/latest/gr/ssm.html
    """
    ssm, responses = ministack.services.ssm, ministack.core.responses
    handle = ssm.handle_request
    counts: Counter[tuple[str, str]] = Counter()  # number of calls in the current second
    began_at = 0.0

    async def handle_within_rate(method: str, path: str, headers: dict[str, str], body: bytes, query: Any) -> Any:
        nonlocal began_at
        if headers.get("x-amz-target", "").rpartition(".")[2] in PARAMETER_READS:
            if time.monotonic() >= began_at + 1:
                began_at = time.monotonic()
                counts.clear()
            place = responses.get_account_id(), responses.get_region()
            counts[place] += 1
            if counts[place] > limit_per_s:
                return ssm.error_response_json("ThrottlingException", "Rate exceeded", 400)
        return await handle(method, path, headers, body, query)

    ssm.handle_request = handle_within_rate


def fail_entries(behaviours: Behaviours, random: Random) -> None:
    """Fail entries of batches at random, with an error of SQS and not of the sender.

    "Because the batch request can result in a combination of successful and unsuccessful actions, you should check for
    batch errors even when the call returns an HTTP status code of 200."
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
    """
    sqs = ministack.services.sqs
    dispatch = sqs._dispatch  # noqa: SLF001 - no public hook

    async def dispatch_entries(action: str, data: dict[str, Any], queue_url: str) -> Any:
        entries = data.get("Entries") or []
        if action not in BATCHES or len(entries) > MAX_ENTRIES:
            return await dispatch(action, data, queue_url)
        is_fifo = str(data.get("QueueUrl") or queue_url).endswith(".fifo")
        chance = behaviours.fifo_entry_fails if is_fifo else behaviours.entry_fails
        hit = [entry for entry in entries if random.random() < chance]
        spared = [entry for entry in entries if entry not in hit]
        if not hit or len({entry.get("Id") for entry in entries}) < len(entries):
            return await dispatch(action, data, queue_url)
        result: dict[str, Any] = {"Successful": [], "Failed": []}
        if spared:
            result = await dispatch(action, {**data, "Entries": spared}, queue_url)
        text = "We encountered an internal error. Please try again."
        failed = [{"Id": entry["Id"], "Code": "InternalError", "Message": text, "SenderFault": False} for entry in hit]
        return {**result, "Failed": [*result["Failed"], *failed]}

    sqs._dispatch = dispatch_entries  # noqa: SLF001 - see above
