"""A log of SQS requests, one JSON line each, written by the cloud and read by tests and benchmarks.

The log includes receives and deletes by triggers. On AWS the log would also have about 15 empty long polls per minute
of each idle trigger. The embedded cloud checks the queue instead, and doesn't log checks of an empty queue.
"""

import json
import time
from pathlib import Path
from threading import Lock
from typing import Any, TextIO
from urllib.parse import parse_qs

BY_TRIGGER = "trigger"
BY_CALL = "call"


class RequestLog:
    """Writes the log of SQS requests. Thread-safe. Each line is flushed, so that programs can follow the log."""

    def __init__(self, path: Path) -> None:
        """Open the log file for appending, so that a restarted cloud continues the log."""
        self._file: TextIO = path.open("a", buffering=1)
        self._lock = Lock()

    def write_entry(self, *, action: str, queue: str, by: str, status: int = 200) -> None:
        """Write one line, a JSON object with these fields, to the log."""
        line = {"at_ms": time.time_ns() // 1_000_000, "action": action, "queue": queue, "by": by, "status": status}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")


def parse_action_and_queue(headers: dict[str, str], body: bytes, query: dict[str, Any]) -> tuple[str, str]:
    """Return an SQS request's action and queue, in either protocol. The queue is "" if the request names none."""
    target = headers.get("x-amz-target", "")
    if target.startswith("AmazonSQS."):
        try:
            fields = json.loads(body or b"{}")
        except ValueError:
            fields = {}
        fields = fields if isinstance(fields, dict) else {}
        action = target.partition(".")[2]
    else:
        posted = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        fields = {name: value[0] if isinstance(value, list) else value for name, value in query.items()} | posted
        action = fields.get("Action", "")
    queue = fields.get("QueueUrl") or fields.get("QueueName")
    return action, queue.rsplit("/", 1)[-1] if isinstance(queue, str) else ""
