"""Patches of ministack's CloudWatch: function logs, embedded metrics, SQS metrics, and a log of SQS requests.

Values are aggregated by second, so a metric has at most one point per second, however much traffic there is.
"""

import contextlib
import fcntl
import json
import struct
import termios
import time
from collections.abc import Mapping
from typing import Any

import ministack.core.lambda_runtime
import ministack.services.cloudwatch
import ministack.services.lambda_svc
import ministack.services.sqs

from sluice.local.patches.functions import PER_REQUEST
from sluice.local.requests import BY_CALL, BY_TRIGGER, RequestLog, parse_action_and_queue

EMBEDDED = '"CloudWatchMetrics"'  # Every log line with embedded metrics contains this text.
OK = 200
LOG_TIMEOUT_S, LOOK_EVERY_S = 5.0, 0.001
SENT, RECEIVED, DELETED = "NumberOfMessagesSent", "NumberOfMessagesReceived", "NumberOfMessagesDeleted"
# A response contains this text once per message, because quotes in message bodies are escaped.
RESPONSE_MARKERS = {
    "SendMessage": (SENT, b'"MessageId":'),
    "SendMessageBatch": (SENT, b'"MessageId":'),
    "ReceiveMessage": (RECEIVED, b'"ReceiptHandle":'),
}


def keep_logs_whole() -> None:
    """Read all lines that a function logged before it responded.

    ministack waits 50 ms for the first line. On a busy machine a line can take longer. Such a line is logged with the
    environment's next invocation, or lost if there is none. AWS logs a line with the invocation that wrote it.
    https://docs.aws.amazon.com/lambda/latest/dg/monitoring-cloudwatchlogs.html
    """
    environments = ministack.core.lambda_runtime.Worker
    drain = environments._drain_stderr_bounded  # noqa: SLF001 - no public hook

    def unread_bytes(pipe: Any) -> int:
        try:
            (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
        except (OSError, ValueError):
            return 0  # The pipe is closed.
        return int(count)

    def drain_all(environment: Any, *arguments: Any, **named: Any) -> str:
        process, deadline = environment._proc, time.monotonic() + LOG_TIMEOUT_S  # noqa: SLF001 - see above
        while process and unread_bytes(process.stderr) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        log: str = drain(environment, *arguments, **named)
        return log

    environments._drain_stderr_bounded = drain_all  # noqa: SLF001 - see above


def publish_embedded_metrics() -> None:
    """Publish the metrics that functions log in the embedded metric format.

    ministack publishes only Lambda's own metrics and those of `PutMetricData`. CloudWatch also has embedded metrics.
    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
    """
    functions = ministack.services.lambda_svc
    emit = functions._emit_lambda_logs  # noqa: SLF001 - no public hook

    def emit_and_publish(func: Any, request_id: str, log_text: str, *arguments: Any, **named: Any) -> None:
        emit(func, request_id, log_text, *arguments, **named)
        for line in (log_text or "").splitlines():
            if EMBEDDED in line:
                # A line that isn't in the embedded metric format is only logged, as on AWS.
                with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                    _publish(json.loads(line))

    functions._emit_lambda_logs = emit_and_publish  # noqa: SLF001 - see above


def _publish(document: Mapping[str, Any]) -> None:
    at_s = document["_aws"]["Timestamp"] / 1000
    for directive in document["_aws"]["CloudWatchMetrics"]:
        for names in directive["Dimensions"]:
            dimensions = {name: str(document[name]) for name in names}
            for metric in directive["Metrics"]:
                values = document[metric["Name"]]
                for value in values if isinstance(values, list) else [values]:
                    add(directive["Namespace"], metric["Name"], float(value), dimensions, at_s=at_s)


def count_messages(log: RequestLog) -> None:
    """Publish SQS metrics: the numbers of messages that requests and event source mappings send, receive and delete.

    The requests are written to `log` as well, including the requests that Lambda would make for a mapping.

    ministack publishes no metrics of SQS. AWS does.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-available-cloudwatch-metrics.html
    """
    sqs = ministack.services.sqs
    handle = sqs.handle_request
    receive, delete = sqs._receive_messages_for_esm, sqs._delete_messages_for_esm  # noqa: SLF001 - no public hook

    async def handle_and_log(
        method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]
    ) -> tuple[int, Any, Any]:
        response: tuple[int, Any, Any] = await handle(method, path, headers, body, query)
        action, queue = parse_action_and_queue(headers, body, query)
        log.write_entry(action=action, queue=queue or path.rsplit("/", 1)[-1], by=BY_CALL, status=response[0])
        if response[0] == OK:
            _count(action, queue, body, response[2])
        return response

    def receive_and_log(queue_url: str, max_number: int) -> Any:
        messages, queue = receive(queue_url, max_number), queue_url.rsplit("/", 1)[-1]
        if messages:
            log.write_entry(action="ReceiveMessage", queue=queue, by=BY_TRIGGER)
            _add(RECEIVED, queue, len(messages))
        return messages

    def delete_and_log(queue_url: str, receipt_handles: set[str]) -> None:
        delete(queue_url, receipt_handles)
        queue = queue_url.rsplit("/", 1)[-1]
        for _ in range(0, len(receipt_handles), PER_REQUEST):
            log.write_entry(action="DeleteMessageBatch", queue=queue, by=BY_TRIGGER)
        _add(DELETED, queue, len(receipt_handles))

    sqs.handle_request = handle_and_log
    sqs._receive_messages_for_esm, sqs._delete_messages_for_esm = receive_and_log, delete_and_log  # noqa: SLF001


def _count(action: str, queue: str, request_body: bytes, response_body: Any) -> None:
    body = response_body if isinstance(response_body, bytes) else str(response_body or "").encode()
    if action in RESPONSE_MARKERS:
        metric, marker = RESPONSE_MARKERS[action]
        _add(metric, queue, body.count(marker))
    elif action == "DeleteMessage":
        _add(DELETED, queue, 1)
    elif action == "DeleteMessageBatch":
        with contextlib.suppress(ValueError, AttributeError):
            failed = json.loads(body or b"{}").get("Failed", [])
            _add(DELETED, queue, request_body.count(b'"ReceiptHandle"') - len(failed))


def _add(metric: str, queue: str, number: int) -> None:
    if number > 0 and queue:
        add("AWS/SQS", metric, float(number), {"QueueName": queue}, at_s=time.time())


def add(namespace: str, name: str, value: float, dimensions: Mapping[str, str], *, at_s: float) -> None:
    """Add a value to a metric's point for second `at_s` (epoch seconds), in the account and region of the request."""
    cloudwatch = ministack.services.cloudwatch
    points = cloudwatch._metric_bucket((namespace, name, cloudwatch._dims_key(dict(dimensions))))  # noqa: SLF001 - no public hook
    second = float(int(at_s))
    last: dict[str, Any] | None = points[-1] if points else None
    if last is None or last["Timestamp"] != second or "_stat" not in last:
        begun = {"SampleCount": 1, "Sum": value, "Minimum": value, "Maximum": value}
        fields = {"Timestamp": second, "Unit": "Count", "Dimensions": dict(dimensions)}
        points.append({**fields, "Value": value, "_stat": begun})
        return
    before = last["_stat"]
    last["_stat"] = {
        "SampleCount": before["SampleCount"] + 1,
        "Sum": before["Sum"] + value,
        "Minimum": min(before["Minimum"], value),
        "Maximum": max(before["Maximum"], value),
    }


def patch(log: RequestLog) -> None:
    """Apply all patches of this module."""
    keep_logs_whole()
    publish_embedded_metrics()
    count_messages(log)
