"""What of ministack is patched and can be tried without its server.

Its import raises the process's limit of recursion: suites that try what is too deep run in others.
"""

from collections.abc import Callable
from typing import Any

import ministack.app
import pytest

from sluice.local import patches


def test_a_state_that_changes_while_it_is_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[Any] = []

    def save(services: dict[str, Callable[[], Any]]) -> None:
        happened.append({name: get_state() for name, get_state in services.items()})

    faults = [RuntimeError("dictionary changed size during iteration")] * 3

    def queues() -> str:
        if faults:
            raise faults.pop()
        return "queues"

    monkeypatch.setattr(ministack.app, "save_all", save)
    patches.keep_state_whole(lambda: happened.append("end"))
    ministack.app.save_all({"sqs": queues, "iam": lambda: "users"})
    assert happened == [{"sqs": "queues", "iam": "users"}, "end"]
