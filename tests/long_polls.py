"""moto's long polls, which wait by the real clock for what no other thread is there to send."""

from functools import wraps
from typing import Any

from moto.sqs.models import SQSBackend


def answered_at_once() -> None:
    """Have moto answer each receive with what is there."""
    real = SQSBackend.receive_message
    if hasattr(real, "__wrapped__"):
        return

    @wraps(real)
    def receive_message(
        self: SQSBackend, queue_name: str, count: int, wait_seconds_timeout: int, *rest: Any, **named: Any
    ) -> Any:
        return real(self, queue_name, count, 0, *rest, **named)

    SQSBackend.receive_message = receive_message  # type: ignore[method-assign]
