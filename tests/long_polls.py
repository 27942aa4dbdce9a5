"""moto's long polls, which wait whole seconds by the real clock: in these tests nothing is sent meanwhile."""

from functools import wraps
from typing import Any

from moto.sqs.models import Queue, SQSBackend

AT_MOST_S = 0.05  # and not at once: whoever polls until a deadline would do nothing else


def shorten_long_polls() -> None:
    """Have moto answer each receive soon where the queue is empty."""
    receive, wait = SQSBackend.receive_message, Queue.wait_for_messages
    if hasattr(receive, "__wrapped__"):
        return

    @wraps(receive)
    def receive_message(self: SQSBackend, queue_name: str, count: int, wait_s: float, *rest: Any, **named: Any) -> Any:
        return receive(self, queue_name, count, min(wait_s, AT_MOST_S), *rest, **named)  # type: ignore[arg-type]

    @wraps(wait)
    def wait_for_messages(self: Queue, timeout: float) -> None:
        wait(self, min(timeout, AT_MOST_S))  # type: ignore[arg-type]  # it waits for parts of a second, too

    # setattr, since the types of what replaces them take parts of a second.
    setattr(SQSBackend, "receive_message", receive_message)  # noqa: B010 - see above
    setattr(Queue, "wait_for_messages", wait_for_messages)  # noqa: B010 - see above
