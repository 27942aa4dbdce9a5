"""SQS's JSON protocol over HTTP/1.1, in front of the queues; and the control calls under `/_memory/`.

A protocol of its own instead of a web framework: at 100,000 messages a second the server must cost less than what it
measures.
"""

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import orjson

from tests.sqs.failures import Failure, Script
from tests.sqs.queues import BATCH_LIMIT, Queue, SqsError

ACCOUNT = "000000000000"
LOOPBACK = "127.0.0.1"
HEADER_END = b"\r\n\r\n"
CONTROL = "/_memory/"
SERVER_ERROR = 500
LOOK_AGAIN_S = 0.005  # the least time between two looks of a waiting receive
Answer = bytes
NOTHING = b"{}"


@dataclass(slots=True)
class State:
    """All that the server knows."""

    latency_s: float = 0.0
    url: str = ""
    queues: dict[str, Queue] = field(default_factory=dict)
    script: Script = field(default_factory=Script)
    calls: Counter[str] = field(default_factory=Counter)
    request_ids: Iterator[int] = field(default_factory=itertools.count)
    waiters: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    watch: Callable[..., None] = field(default=lambda action, *, done: None)

    def queue(self, request: Mapping[str, Any]) -> Queue:
        """The queue that the request's QueueUrl, or QueueName, names."""
        name = request.get("QueueName") or str(request.get("QueueUrl", "")).rpartition("/")[2]
        found = self.queues.get(name)
        if found is None:
            raise SqsError("com.amazonaws.sqs#QueueDoesNotExist", "The specified queue does not exist.")
        return found

    def queue_url(self, name: str) -> str:
        """As CreateQueue answers it."""
        return f"{self.url}/{ACCOUNT}/{name}"

    def wake(self, name: str) -> None:
        """Lets waiting receives look again."""
        for look in self.waiters.pop(name, []):
            look()


class Connection(asyncio.Protocol):
    """One client connection: requests one after another, answered in order."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._received = bytearray()
        self._busy = False
        self._action = ""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's call."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio's call."""
        self._transport = None

    @property
    def open(self) -> bool:
        """A waiting receive of a client that has gone takes no messages."""
        return self._transport is not None and not self._transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """Asyncio's call: one request is answered before the next is begun."""
        self._received += data
        if not self._busy:
            self._next()

    def _next(self) -> None:
        end = self._received.find(HEADER_END)
        if end < 0:
            return
        head = Head(bytes(self._received[:end]))
        whole = end + len(HEADER_END) + int(head.value(b"content-length") or 0)
        if len(self._received) < whole:
            return
        body = bytes(self._received[end + len(HEADER_END) : whole])
        del self._received[:whole]
        self._busy = True
        if head.path.startswith(CONTROL):
            self._guarded(partial(_control, self._state, head.path.removeprefix(CONTROL)), body, None)
            return
        action = head.value(b"x-amz-target").removeprefix("AmazonSQS.")
        self._state.calls[action] += 1
        if self._state.latency_s:
            asyncio.get_running_loop().call_later(self._state.latency_s, self._call, action, body)
        else:
            self._call(action, body)

    def _call(self, action: str, body: bytes) -> None:
        self._state.watch(action, done=False)
        self._action = action
        failure = self._state.script.next(action)
        if failure and failure.how == "hang":
            return
        if failure and failure.how == "refuse":
            self._refuse(SqsError(failure.code, "by script", failure.status))
        elif action == "ReceiveMessage":
            self._receive(orjson.loads(body), failure)
        elif handler := ACTIONS.get(action):
            self._guarded(partial(handler, self._state, failure), body, failure)
        else:
            self._refuse(SqsError("UnsupportedOperation", action))

    def _guarded(self, handler: Callable[[dict[str, Any]], Answer], body: bytes, failure: Failure | None) -> None:
        try:
            answer = handler(orjson.loads(body) if body else {})
        except SqsError as error:
            self._refuse(error)
        except (KeyError, TypeError, ValueError) as error:
            self._refuse(SqsError("InvalidParameterValue", repr(error)))
        else:
            self._finish(answer, failure)

    def _receive(self, request: dict[str, Any], failure: Failure | None) -> None:
        deadline = time.time() + float(request.get("WaitTimeSeconds", 0))
        self._look(request, deadline, failure)

    def _look(self, request: dict[str, Any], deadline: float, failure: Failure | None) -> None:
        if not self.open:
            return
        now = time.time()
        try:
            queue = self._state.queue(request)
            limit = min(BATCH_LIMIT, int(request.get("MaxNumberOfMessages", 1)))
            messages = queue.receive(
                limit, request.get("VisibilityTimeout"), now, request.get("ReceiveRequestAttemptId")
            )
        except SqsError as error:
            self._refuse(error)
            return
        if messages:
            self._finish(f'{{"Messages":[{",".join(map(queue.encoded, messages))}]}}'.encode(), failure)
        elif now >= deadline:
            self._finish(NOTHING, failure)
        else:
            self._wait(queue, partial(self._look, request, deadline, failure), deadline)

    def _wait(self, queue: Queue, look: Callable[[], None], deadline: float) -> None:
        done = False

        def once() -> None:
            nonlocal done
            if not done:
                done = True
                look()

        self._state.waiters.setdefault(queue.name, []).append(once)
        until = min(deadline, queue.next_change() or deadline)
        asyncio.get_running_loop().call_later(max(LOOK_AGAIN_S, until - time.time()), once)

    def _finish(self, answer: Answer, failure: Failure | None) -> None:
        if failure and failure.how == "lose" and self._transport:
            self._transport.abort()
            return
        self._write(200, answer)
        if answer != NOTHING:
            self._state.watch(self._action, done=True)

    def _refuse(self, error: SqsError) -> None:
        body = orjson.dumps({"__type": error.code, "message": str(error)})
        self._write(error.status, body, f"x-amzn-query-error: {error.code.rpartition('#')[2]};Sender\r\n")

    def _write(self, status: int, body: bytes, header: str = "") -> None:
        if self._transport is None:
            return
        head = (
            f"HTTP/1.1 {status} -\r\nContent-Type: application/x-amz-json-1.0\r\n"
            f"x-amzn-RequestId: {next(self._state.request_ids):032x}\r\n{header}Content-Length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
        self._busy = False
        if self._received:
            self._next()


@dataclass(frozen=True, slots=True)
class Head:
    """A request's line and headers, looked through for the few that are asked for."""

    text: bytes

    @property
    def path(self) -> str:
        """Of the request line."""
        return self.text.split(b" ", 2)[1].decode("latin-1")

    def value(self, name: bytes) -> str:
        """The header of this name, in lower case; empty without it."""
        sought = b"\r\n" + name + b":"
        at = self.text.lower().find(sought)
        if at < 0:
            return ""
        return self.text[at + len(sought) :].partition(b"\r\n")[0].strip().decode("latin-1")


def _create(state: State, _: Failure | None, request: dict[str, Any]) -> Answer:
    name = request["QueueName"]
    attributes = request.get("Attributes", {})
    state.queues.setdefault(name, Queue(name, visibility_s=float(attributes.get("VisibilityTimeout", 30))))
    return orjson.dumps({"QueueUrl": state.queue_url(name)})


def _queue_url(state: State, _: Failure | None, request: dict[str, Any]) -> Answer:
    return orjson.dumps({"QueueUrl": state.queue_url(state.queue(request).name)})


def _attributes(state: State, _: Failure | None, request: dict[str, Any]) -> Answer:
    queue = state.queue(request)
    known = {name: str(value) for name, value in queue.counts(time.time()).items()}
    known |= {
        "VisibilityTimeout": str(int(queue.visibility_s)),
        "QueueArn": f"arn:aws:sqs:local:{ACCOUNT}:{queue.name}",
    }
    asked = request.get("AttributeNames", [])
    return orjson.dumps(
        {"Attributes": {name: value for name, value in known.items() if name in asked or "All" in asked}}
    )


def _send(state: State, _: Failure | None, request: dict[str, Any]) -> Answer:
    queue = state.queue(request)
    identity = queue.send(request, time.time())
    state.wake(queue.name)
    return orjson.dumps({"MessageId": identity, "MD5OfMessageBody": ""})


def _send_batch(state: State, failure: Failure | None, request: dict[str, Any]) -> Answer:
    queue, now = state.queue(request), time.time()
    answer = _batch(request, failure, lambda entry: {"MessageId": queue.send(entry, now)})
    state.wake(queue.name)
    return answer


def _delete(state: State, _: Failure | None, request: dict[str, Any]) -> Answer:
    state.queue(request).delete(request["ReceiptHandle"], time.time())
    return NOTHING


def _delete_batch(state: State, failure: Failure | None, request: dict[str, Any]) -> Answer:
    queue, now = state.queue(request), time.time()

    def one(entry: dict[str, Any]) -> dict[str, str]:
        queue.delete(entry["ReceiptHandle"], now)
        return {}

    answer = _batch(request, failure, one)
    if queue.fifo:
        state.wake(queue.name)
    return answer


def _visibility(state: State, _: Failure | None, request: dict[str, Any]) -> Answer:
    queue = state.queue(request)
    queue.change_visibility(request["ReceiptHandle"], float(request["VisibilityTimeout"]), time.time())
    state.wake(queue.name)
    return NOTHING


def _visibility_batch(state: State, failure: Failure | None, request: dict[str, Any]) -> Answer:
    queue, now = state.queue(request), time.time()

    def one(entry: dict[str, Any]) -> dict[str, str]:
        queue.change_visibility(entry["ReceiptHandle"], float(entry["VisibilityTimeout"]), now)
        return {}

    answer = _batch(request, failure, one)
    state.wake(queue.name)
    return answer


def _batch(
    request: Mapping[str, Any], failure: Failure | None, one: Callable[[dict[str, Any]], dict[str, str]]
) -> Answer:
    entries = request.get("Entries", [])
    if not entries:
        raise SqsError("com.amazonaws.sqs#EmptyBatchRequest")
    if len(entries) > BATCH_LIMIT:
        raise SqsError("com.amazonaws.sqs#TooManyEntriesInBatchRequest")
    done, failed = [], []
    for index, entry in enumerate(entries):
        try:
            if failure and failure.how == "partial" and not index % 2:
                raise SqsError(failure.code, "by script", failure.status)  # noqa: TRY301  as a queue raises it
            done.append({"Id": entry["Id"], **one(entry)})
        except SqsError as error:
            failed.append(
                {
                    "Id": entry["Id"],
                    "Code": error.code,
                    "Message": str(error),
                    "SenderFault": error.status < SERVER_ERROR,
                }
            )
    return orjson.dumps({"Successful": done, **({"Failed": failed} if failed else {})})


def _purge(state: State, _: Failure | None, request: dict[str, Any]) -> Answer:
    queue = state.queue(request)
    state.queues[queue.name] = Queue(queue.name, visibility_s=queue.visibility_s)
    return NOTHING


ACTIONS: Mapping[str, Callable[[State, Failure | None, dict[str, Any]], Answer]] = {
    "CreateQueue": _create,
    "GetQueueUrl": _queue_url,
    "GetQueueAttributes": _attributes,
    "SendMessage": _send,
    "SendMessageBatch": _send_batch,
    "DeleteMessage": _delete,
    "DeleteMessageBatch": _delete_batch,
    "ChangeMessageVisibility": _visibility,
    "ChangeMessageVisibilityBatch": _visibility_batch,
    "PurgeQueue": _purge,
}


def _control(state: State, command: str, request: dict[str, Any]) -> Answer:
    """Fill {queue, count, size} · failures [..] · latency {seconds} · limit {queue, in_flight} · counts · depths
    · calls."""
    if command == "fill":
        size = int(request["size"])
        bodies = (f"{number:012d}".ljust(size, "x") for number in range(int(request["count"])))
        state.queues[request["queue"]].fill(bodies, time.time())
        state.wake(request["queue"])
    elif command == "failures":
        state.script.add(request)
    elif command == "latency":
        state.latency_s = float(request["seconds"])
    elif command == "limit":
        state.queues[request["queue"]].in_flight_limit = int(request["in_flight"])
    elif command == "counts":
        return orjson.dumps({name: queue.counts(time.time()) for name, queue in state.queues.items()})
    elif command == "depths":
        return orjson.dumps({name: len(queue.known) for name, queue in state.queues.items()})
    elif command == "calls":
        return orjson.dumps(state.calls)
    else:
        raise SqsError("UnsupportedOperation", command, 404)
    return NOTHING


async def serve(state: State, port: int = 0) -> asyncio.Server:
    """Listens on loopback; `state.url` then says where."""
    server = await asyncio.get_running_loop().create_server(lambda: Connection(state), LOOPBACK, port, backlog=512)
    state.url = f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
    return server


@contextmanager
def running(latency_s: float = 0.0) -> Iterator[State]:
    """A server in a thread of this process, for tests. Its state may be read while it is quiet."""
    state, ready, loop = State(latency_s=latency_s), threading.Event(), asyncio.new_event_loop()

    def run() -> None:
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(serve(state))
        ready.set()
        loop.run_forever()
        server.close()

    thread = threading.Thread(target=run, name="memory-sqs", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield state
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
