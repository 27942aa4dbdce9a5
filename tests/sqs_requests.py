"""SQS requests that an embedded cloud has noted, read from its log."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sluice.local.requests import BY_TRIGGER


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsRequest:
    """One request. `queue` is a name; `by` says whether a program called or a trigger."""

    at_ms: int
    action: str
    queue: str
    by: str
    status: int


def read_requests(path: Path, *, offset: int = 0) -> Iterator[SqsRequest]:
    """Those noted after `offset` bytes of the file."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if line.endswith(b"\n"):
                yield SqsRequest(**json.loads(line))


def by_action(requests: Iterator[SqsRequest]) -> Counter[str]:
    """How many of each: `SendMessage`, and `trigger ReceiveMessage` for a trigger's."""
    return Counter(f"trigger {r.action}" if r.by == BY_TRIGGER else r.action for r in requests)
