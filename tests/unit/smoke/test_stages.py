"""How throw-away stages come and go: only where that is asked for, and whatever fails, all else is still taken away."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest

from benchmarks.prices import price_list
from sluice.building.project import PROJECT
from sluice.errors import CallFailed
from tests.smoke.stage_contents import Left
from tests.smoke.stages import Bill, CommandFailed, NotReady, SmokeSite, Stages, estimate_usd
from tests.smoke.usage import OwnRequests


class FakeSite:
    """Is its own contents, and notes what is done to it."""

    def __init__(self, stage: str, done: list[str], *, sweep_fails: bool, there_already: Sequence[Left]) -> None:
        self.stage, self.done, self.sweep_fails, self.there_already = stage, done, sweep_fails, there_already

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


class FakeStages(Stages):
    """Runs no commands: the first `failures` of them fail."""

    def __init__(self, *, failures: int = 0, sweep_fails: bool = False, there_already: Sequence[Left] = ()) -> None:
        self.failures, self.done = failures, list[str]()
        here, there = (
            cast("SmokeSite", FakeSite(stage, self.done, sweep_fails=sweep_fails, there_already=there_already))
            for stage in "ab"
        )
        super().__init__(here, there, None, OwnRequests())

    def _sluice(self, command: str, options: Callable[[SmokeSite], Sequence[str]]) -> None:
        self.done.append(command)
        assert "--remove" in options(self.here)
        if self.failures:
            self.failures -= 1
            raise CommandFailed("the bucket isn't empty")


def test_a_bucket_that_is_written_to_once_more_is_emptied_once_more() -> None:
    stages = FakeStages(failures=1)
    assert stages.destroy() == "nothing is left; CommandFailed: the bucket isn't empty"
    assert stages.done == ["empty bucket", "destroy", "empty bucket", "destroy", "sweep a", "sweep b"]


def test_what_can_be_taken_away_is_where_something_else_cannot() -> None:
    stages = FakeStages(sweep_fails=True)
    assert "DeleteLogGroup" in stages.destroy()
    assert stages.done == ["empty bucket", "destroy", "sweep a", "sweep b"]


def test_stages_whose_names_are_taken_are_not_made() -> None:
    stages = FakeStages(there_already=[Left(kind="queue", name="a-orders", remove="aws sqs …")])
    with pytest.raises(NotReady, match="these have the stages' names, and would be deleted: a-orders"):
        stages.check_names()


def test_a_run_may_cost_less_than_a_dollar_by_its_limits() -> None:
    assert 0 < estimate_usd() < 1


def test_a_bill_has_a_line_for_all_that_was_used() -> None:
    made = Bill.of([{"sqs_standard": 600_000, "lambda_calls": 0}, {"sqs_standard": 400_000}])
    assert made.usd == pytest.approx(price_list().prices["sqs_standard"].usd)
    [line] = made.lines
    assert line.startswith("1,000,000.000 SQS requests")


def run_smoke(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "SLUICE_SMOKE"} | variables
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--capture=no", "tests/smoke", *arguments]
    return subprocess.run(command, cwd=PROJECT.workspace, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_nothing_is_deployed_unless_that_is_asked_for() -> None:
    done = run_smoke()
    assert done.returncode == 0
    assert "14 skipped" in done.stdout
    assert "run `make smoke`" in done.stdout


@pytest.mark.slow
def test_no_run_begins_that_may_cost_more_than_its_budget() -> None:
    done = run_smoke("--local", "--budget-usd", "0.1", SLUICE_SMOKE="1")
    assert done.returncode != 0
    assert "more than --budget-usd 0.1" in done.stdout + done.stderr
    assert "deploys" not in done.stderr
