"""What one receive brought: a value that the log and the source know without knowing the client. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BATCH_LIMIT = 10  # messages of one call


@dataclass(frozen=True, slots=True)
class Received:
    """Messages of one receive, as SQS's JSON has them, and the queue that they came from."""

    queue_url: str
    messages: Sequence[Mapping[str, Any]]


def in_tens(received: Iterable[Received]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield receipt handles, by queue, as many as one call takes."""
    by_queue: dict[str, list[str]] = {}
    for answer in received:
        by_queue.setdefault(answer.queue_url, []).extend(message["ReceiptHandle"] for message in answer.messages)
    for queue_url, handles in by_queue.items():
        for start in range(0, len(handles), BATCH_LIMIT):
            yield queue_url, handles[start : start + BATCH_LIMIT]
