"""How throw-away stages go: whatever fails on the way, all else is still taken away."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from sluice.aws.operator.stage_contents import Left
from sluice.aws.operator.usage import OwnRequests
from sluice.errors import CallFailed
from sluice.smoke.runs import NotSo
from sluice.smoke.sites import SmokeSite
from sluice.smoke.stages import CommandFailed, Stages


@dataclass
class FakeSite:
    """Is its own contents, and notes what is done to it."""

    stage: str
    done: list[str]
    sweep_fails: bool = False
    there_already: Sequence[Left] = ()

    @property
    def contents(self) -> "FakeSite":
        return self

    def queues(self) -> Mapping[str, str]:
        return {f"{self.stage}-q": "url"}

    def resources(self, kind: str) -> Sequence[str]:
        return ["bucket"]

    def empty_bucket(self, name: str) -> None:
        self.done.append(f"empty {name}")

    def delete_made_at_run_time(self) -> None:
        self.done.append(f"sweep {self.stage}")
        if self.sweep_fails:
            raise CallFailed("DeleteLogGroup", "AccessDenied", "no")

    def left(self, *, buckets: Sequence[str] = ()) -> Sequence[Left]:
        return self.there_already


@dataclass
class FakeStages(Stages):
    """Runs no commands: the first `failures` of them fail."""

    failures: int = 0
    done: list[str] = field(default_factory=list)

    @classmethod
    def made(cls, *, failures: int = 0, sweep_fails: bool = False, there_already: Sequence[Left] = ()) -> "FakeStages":
        done = list[str]()
        here, there = (cast("SmokeSite", FakeSite(stage, done, sweep_fails, there_already)) for stage in "ab")
        return cls(here, there, None, OwnRequests(), failures=failures, done=done)

    def _at_both(self, arguments: Callable[[SmokeSite], Sequence[str]]) -> None:
        command, *options = arguments(self.here)
        self.done.append(command)
        assert "--remove" in options
        if self.failures:
            self.failures -= 1
            raise CommandFailed("the bucket isn't empty")


def test_a_bucket_that_is_written_to_once_more_is_emptied_once_more() -> None:
    stages = FakeStages.made(failures=1)
    assert stages.destroy() == "nothing is left; CommandFailed: the bucket isn't empty"
    assert stages.done == ["empty bucket", "destroy", "empty bucket", "destroy", "sweep a", "sweep b"]


def test_what_can_be_taken_away_is_where_something_else_cannot() -> None:
    stages = FakeStages.made(sweep_fails=True)
    assert "DeleteLogGroup" in stages.destroy()
    assert stages.done == ["empty bucket", "destroy", "sweep a", "sweep b"]


def test_stages_whose_names_are_taken_are_not_made() -> None:
    stages = FakeStages.made(there_already=[Left(kind="queue", name="a-orders", remove="aws sqs …")])
    with pytest.raises(NotSo, match="these have the stages' names, and would be deleted: a-orders"):
        stages.unused()
