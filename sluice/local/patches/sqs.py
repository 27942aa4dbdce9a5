"""Patches of ministack's SQS: refused requests, receipt handles, FIFO queues, and sender ids."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

import ministack.core.iam_evaluator
import ministack.services.iam
import ministack.services.lambda_svc
import ministack.services.sqs
import ministack.services.sts
from ministack.core.responses import get_account_id
from ministack.core.router import extract_access_key_id

sqs = ministack.services.sqs
iam, sts, iam_evaluator = ministack.services.iam, ministack.services.sts, ministack.core.iam_evaluator
lambda_svc = ministack.services.lambda_svc

Message = dict[str, Any]
Queue = dict[str, Any]
Request = dict[str, Any]
Handler = Callable[[Request, str], Any]

VISIBILITY_S = 43_200  # the longest visibility timeout, counted from a message's receive
WAIT_S = 20
DELAY_S = 900
FIFO_ID = re.compile(r"[!-~]{1,128}")  # a message group id or a deduplication id
NOT_FOR_KIND = "The request include parameter that is not valid for this queue type"
NOT_CHANGED = "Message does not exist or is not available for visibility timeout change."
# Attributes that every new queue has on AWS, but not in ministack.
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SetQueueAttributes.html
DEFAULTS = {"SqsManagedSseEnabled": "true", "KmsDataKeyReusePeriodSeconds": "300"}
FIFO_DEFAULTS = {"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"}


def patch() -> None:
    """Apply all patches of this module, once."""
    set_sender_ids()
    keep_traces_of_batches()
    refuse_other_queues()
    refuse_messages()
    refuse_receives()
    encode_handles()
    delete_by_handle()
    change_visibility_by_handle()
    receive_whole_groups()
    move_dead_letters_of_free_groups()


def set_sender_ids() -> None:
    """Set a message's `SenderId` to the id of the user who sent it, or to the role's id and its session's name.

    ministack sets the account's id. AWS sets the account's id only for messages of the account's root user.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ReceiveMessage.html
    """
    build, pin = sqs._build_send_sys_attrs, iam_evaluator.pin_request_caller  # noqa: SLF001 - no public hook
    caller: ContextVar[str] = ContextVar("caller", default="")

    def remember_caller(headers: Request, query: Request | None = None) -> None:
        caller.set(extract_access_key_id(headers, query or {}) or "")
        pin(headers, query)

    def build_with_sender(now: float, system_attributes: Any) -> dict[str, str]:
        attributes: dict[str, str] = build(now, system_attributes)
        return attributes | {"SenderId": _find_sender_id(caller.get())}

    run = lambda_svc._run_sqs_batch  # noqa: SLF001

    def run_with_senders(mapping: Any, function: Any, event: Request, batch: list[Message], *queue: str) -> Any:
        senders = {message["id"]: message["sys"]["SenderId"] for message in batch}
        for record in event["Records"]:
            record["attributes"]["SenderId"] = senders[record["messageId"]]
        return run(mapping, function, event, batch, *queue)

    iam_evaluator.pin_request_caller, sqs._build_send_sys_attrs = remember_caller, build_with_sender  # noqa: SLF001
    lambda_svc._run_sqs_batch = run_with_senders  # noqa: SLF001


def _find_sender_id(access_key: str) -> str:
    """Return the `SenderId` of an access key: a user's id, a role's id with the session's name, or the account's id."""
    session, account = sts._sessions.get(access_key), iam_evaluator.find_iam_access_key_account(access_key)  # noqa: SLF001
    if session is not None:
        arn = str(session["Arn"])
    elif account is not None:
        arn = f"arn:aws:iam::{account}:user/{iam._access_keys.get_scoped(account, None, access_key)['UserName']}"  # noqa: SLF001
    else:
        return str(get_account_id())
    account, resource = arn.split(":", 5)[4:]
    kind, _, name = resource.partition("/")
    if kind == "assumed-role":
        role, _, session_name = name.rpartition("/")
        known = iam._roles.get_scoped(account, None, role.rpartition("/")[2]) or {}  # noqa: SLF001
        return f"{known.get('RoleId', account)}:{session_name}"
    if kind == "user":
        known = iam._users.get_scoped(account, None, name.rpartition("/")[2]) or {}  # noqa: SLF001
        return str(known.get("UserId", account))
    return account


def keep_traces_of_batches() -> None:
    """Keep the trace header of each entry of `SendMessageBatch`.

    ministack keeps `MessageSystemAttributes` of `SendMessage`, but drops those of batches. AWS keeps both.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatchRequestEntry.html
    """
    send, send_batch = sqs._act_send_message, sqs._HANDLERS["SendMessageBatch"]  # noqa: SLF001 - no public hook
    waiting: ContextVar[Iterator[Request] | None] = ContextVar("waiting", default=None)

    def send_with_trace(data: Request, queue_url: str) -> Any:
        entry = next(waiting.get() or iter(()), {})  # The batch's entries are sent in order.
        traced = {name: entry[name] for name in ("MessageSystemAttributes",) if name in entry}
        return send({**data, **traced}, queue_url)

    def send_entries(data: Request, queue_url: str) -> Any:
        token = waiting.set(iter(data.get("Entries", [])))
        try:
            return send_batch(data, queue_url)
        finally:
            waiting.reset(token)

    sqs._act_send_message, sqs._HANDLERS["SendMessageBatch"] = send_with_trace, send_entries  # noqa: SLF001


def refuse_other_queues() -> None:
    """Refuse to create a queue that exists with other attributes, or a queue `….fifo` without attribute `FifoQueue`.

    ministack compares only attributes that the first request named, and infers `FifoQueue` from the name. AWS compares
    all attributes, including defaults, and requires `FifoQueue` if and only if the name ends with `.fifo`.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
    """
    create: Handler = sqs._HANDLERS["CreateQueue"]  # noqa: SLF001 - no public hook

    def create_unless_different(data: Request, queue_url: str) -> Any:
        name, attributes = data.get("QueueName", ""), data.get("Attributes") or {}
        if name.endswith(".fifo") != (attributes.get("FifoQueue") == "true"):
            raise _build_error(
                "InvalidParameterValue", "Can only include alphanumeric characters, hyphens, or underscores"
            )
        sqs._validate_numeric_attrs(attributes)  # noqa: SLF001 - see above
        existing = sqs._queues.get(sqs._queue_url(name))  # noqa: SLF001 - see above
        defaults = {**DEFAULTS, **(FIFO_DEFAULTS if name.endswith(".fifo") else {})}
        actual = {**defaults, **existing["attributes"]} if existing else attributes
        if any(actual.get(attribute) != str(value) for attribute, value in attributes.items()):
            raise _build_error("QueueNameExists", "A queue already exists with the same name and a different value")
        return create(data, queue_url)

    sqs._HANDLERS["CreateQueue"] = create_unless_different  # noqa: SLF001 - see above


def refuse_messages() -> None:
    """Refuse delays of more than 15 minutes, malformed ids, and a deduplication id for a standard queue.

    ministack accepts such messages. AWS answers with `InvalidParameterValue`.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html
    """
    handler, send = sqs._HANDLERS["SendMessage"], sqs._act_send_message  # noqa: SLF001 - no public hook

    def send_checked(sending: Handler, data: Request, queue_url: str) -> Any:
        if not _get_queue(data, queue_url, "SendMessage")["is_fifo"]:
            _check_range("DelaySeconds", data, DELAY_S)
            if data.get("MessageDeduplicationId") is not None:
                raise _build_error("InvalidParameterValue", f"MessageDeduplicationId: {NOT_FOR_KIND}")
        for name in ("MessageGroupId", "MessageDeduplicationId"):
            if data.get(name) is not None and not FIFO_ID.fullmatch(str(data[name])):
                text = f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length"
                raise _build_error("InvalidParameterValue", text)
        return sending(data, queue_url)

    sqs._HANDLERS["SendMessage"] = partial(send_checked, handler)  # noqa: SLF001 - see above
    sqs._act_send_message = partial(send_checked, send)  # noqa: SLF001 - what a batch and SNS send by


def refuse_receives() -> None:
    """Refuse receives with visibility timeouts of more than 12 hours or waits of more than 20 seconds.

    ministack accepts such receives. AWS answers with `InvalidParameterValue`.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ReceiveMessage.html
    """
    receive: Handler = sqs._HANDLERS["ReceiveMessage"]  # noqa: SLF001 - no public hook

    def receive_checked(data: Request, queue_url: str) -> Any:
        _get_queue(data, queue_url, "ReceiveMessage")
        _check_range("VisibilityTimeout", data, VISIBILITY_S)
        _check_range("WaitTimeSeconds", data, WAIT_S)
        return receive(data, queue_url)

    sqs._HANDLERS["ReceiveMessage"] = receive_checked  # noqa: SLF001 - see above


def encode_handles() -> None:
    """Put queue and message into each receipt handle, so that patches can distinguish old handles from foreign handles.

    ministack's handles are random: an old handle looks like a handle of another queue. AWS distinguishes them.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_DeleteMessage.html
    """
    collect = sqs._collect_msgs  # noqa: SLF001 - no public hook

    def collect_with_handles(queue: Queue, most: int, timeout_s: int) -> list[Message]:
        received: list[Message] = collect(queue, most, timeout_s)
        for message in received:
            named = f"{queue['attributes']['QueueArn']} {message['id']} {message['receipt_handle']}"
            message["receipt_handle"] = base64.b64encode(named.encode()).decode()
            message["received_at"] = sqs.time.time()
        return received

    sqs._collect_msgs = collect_with_handles  # noqa: SLF001 - see above


def delete_by_handle() -> None:
    """Accept a receipt handle of an earlier receive or a deleted message. Refuse an expired handle of a FIFO queue.

    ministack accepts only a message's last handle, and refuses other handles with ReceiptHandleIsInvalid, in a batch
    too. On AWS a handle of an earlier receive, or of a deleted message, is valid: the request succeeds, perhaps without
    deleting. For a FIFO queue ministack accepts every handle; AWS refuses a handle of a visible or redelivered message.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_DeleteMessage.html
    """
    delete: Handler = sqs._HANDLERS["DeleteMessage"]  # noqa: SLF001 - no public hook

    def delete_message(data: Request, queue_url: str) -> Any:
        queue = _get_queue(data, queue_url, "DeleteMessage")
        message = _find_message(queue, data["ReceiptHandle"])
        if message is None:
            return {}
        is_last = message["receipt_handle"] == data["ReceiptHandle"]
        if queue["is_fifo"] and not (is_last and message["visible_at"] > sqs.time.time()):
            raise _build_error("InvalidParameterValue", "Reason: The receipt handle has expired.")
        return delete(data, queue_url) if is_last else {}

    handlers = {
        "DeleteMessage": delete_message,
        "DeleteMessageBatch": partial(_handle_batch, delete_message, "DeleteMessage"),
    }
    sqs._HANDLERS |= handlers  # noqa: SLF001 - see above


def change_visibility_by_handle() -> None:
    """Change the visibility timeout only of a message in flight, up to 12 hours from its receive.

    ministack hides even a visible message. On AWS the request succeeds but changes nothing
    (https://github.com/localstack/localstack/pull/9632). For a deleted or redelivered message AWS raises
    `InvalidParameterValue`.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ChangeMessageVisibility.html
    """
    change: Handler = sqs._HANDLERS["ChangeMessageVisibility"]  # noqa: SLF001 - no public hook

    def change_in_flight(data: Request, queue_url: str) -> Any:
        queue = _get_queue(data, queue_url, "ChangeMessageVisibility")
        message = _find_message(queue, data["ReceiptHandle"])
        _check_range("VisibilityTimeout", data, VISIBILITY_S)
        if message is None or message["receipt_handle"] != data["ReceiptHandle"]:
            raise _build_error("InvalidParameterValue", NOT_CHANGED)
        if message["visible_at"] <= sqs.time.time():
            return {}
        if sqs.time.time() + int(data.get("VisibilityTimeout", 0)) > message["received_at"] + VISIBILITY_S:
            text = f"Reason: Total VisibilityTimeout for the message is beyond the limit [{VISIBILITY_S} seconds]"
            raise _build_error("InvalidParameterValue", text)
        return change(data, queue_url)

    batch = partial(_handle_batch, change_in_flight, "ChangeMessageVisibility")
    handlers = {"ChangeMessageVisibility": change_in_flight, "ChangeMessageVisibilityBatch": batch}
    sqs._HANDLERS |= handlers  # noqa: SLF001 - see above


def receive_whole_groups() -> None:
    """Receive as many messages as possible from a FIFO queue's message group before receiving from another group.

    ministack receives messages in the order in which they were sent. "Amazon SQS first attempts to return as many
    messages with the same message group ID as possible".
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/FIFO-queues-understanding-logic.html
    """
    collect = sqs._collect_fifo  # noqa: SLF001 - no public hook

    def collect_groups(queue: Queue, most: int, timeout_s: int, now: float) -> list[Message]:
        received: list[Message] = collect({**queue, "messages": _list_receivable(queue, now)}, most, timeout_s, now)
        return received

    sqs._collect_fifo = collect_groups  # noqa: SLF001 - see above


def move_dead_letters_of_free_groups() -> None:
    """Move messages of a FIFO queue to the dead-letter queue only when they could be received.

    ministack moves a message even if an earlier message of its group is in flight. On AWS the message waits.
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/FIFO-queues-understanding-logic.html
    """
    sweep = sqs._dlq_sweep  # noqa: SLF001 - no public hook

    def sweep_free(queue: Queue) -> None:
        if not queue["is_fifo"]:
            sweep(queue)
            return
        free = {id(message) for message in _list_receivable(queue, sqs.time.time())}
        swept = {**queue, "messages": [message for message in queue["messages"] if id(message) in free]}
        sweep(swept)
        moved = free - {id(message) for message in swept["messages"]}
        queue["messages"] = [message for message in queue["messages"] if id(message) not in moved]

    sqs._dlq_sweep = sweep_free  # noqa: SLF001 - see above


def _list_receivable(queue: Queue, now: float) -> list[Message]:
    """List a FIFO queue's receivable messages by group: none of a group in flight, none after a delayed message."""
    groups: dict[str, list[Message]] = {}
    for message in queue["messages"]:
        groups.setdefault(message.get("group_id") or "", []).append(message)
    receivable = []
    for group in groups.values():
        hidden = [message.get("visible_at", 0) > now for message in group]
        if not any(hides and message.get("receive_count") for hides, message in zip(hidden, group, strict=True)):
            receivable += group[: hidden.index(True) if True in hidden else None]
    return receivable


def _get_queue(data: Mapping[str, Any], queue_url: str, action: str) -> Queue:
    queue: Queue = sqs._get_q(data.get("QueueUrl", queue_url), f"sqs:{action}")  # noqa: SLF001 - no public hook
    return queue


def _find_message(queue: Queue, handle: str) -> Message | None:
    """Find the message of a receipt handle; None if it was deleted. Raises SQS's error for another queue's handle."""
    try:
        arn, message_id, _ = base64.b64decode(handle, validate=True).decode().split(" ")
    except (binascii.Error, ValueError):
        arn = message_id = ""
    if arn != queue["attributes"]["QueueArn"]:
        raise _build_error("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
    # In harsh mode the queue can contain copies with the same message id.
    same = [message for message in queue["messages"] if message["id"] == message_id]
    return next((message for message in same if message["receipt_handle"] == handle), same[0] if same else None)


def _handle_batch(apply_action: Handler, action: str, data: Request, queue_url: str) -> dict[str, Any]:
    """Apply an action to each entry of a batch, and return SQS's response with the failed entries."""
    _get_queue(data, queue_url, action)
    sqs._validate_batch_entries(data.get("Entries", []), f"{action}BatchRequestEntry")  # noqa: SLF001 - no public hook
    done, failed = [], []
    for entry in data["Entries"]:
        try:
            apply_action({**entry, "QueueUrl": data.get("QueueUrl", queue_url)}, queue_url)
            done.append({"Id": entry["Id"]})
        except sqs._Err as error:  # noqa: SLF001 - see above
            failed.append({"Id": entry["Id"], "Code": error.code, "Message": error.message, "SenderFault": True})
    return {"Successful": done, "Failed": failed}


def _check_range(name: str, data: Mapping[str, Any], maximum: int) -> None:
    value = data.get(name)
    if value is not None and not 0 <= int(value) <= maximum:
        raise _build_error("InvalidParameterValue", f"Value {value} for parameter {name} is invalid: 0 to {maximum}.")


def _build_error(code: str, text: str) -> Exception:
    error: Exception = sqs._Err(code, text)  # noqa: SLF001 - what its dispatcher answers with
    return error
