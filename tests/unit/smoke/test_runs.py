"""A smoke run without a cloud: what fails alone, what ends a run, and that the stages always go."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sluice.costs.prices import price_list
from sluice.smoke.costs import bill, estimate_usd
from sluice.smoke.runs import (
    Bill,
    Check,
    NotSo,
    Outcome,
    Plan,
    Report,
    Result,
    Skipped,
    TooDear,
    UnknownCheck,
    chosen,
    run,
)

SOON_S = 0.3


def fine() -> str:
    return "as it should be"


@dataclass
class FakeStages:
    """Notes what is asked; a call that is given fails or does as that does."""

    calls: list[str] = field(default_factory=list)
    instead: dict[str, Callable[[], str]] = field(default_factory=dict)
    usd: float | None = 0.1

    def _do(self, call: str) -> str:
        self.calls.append(call)
        return self.instead.get(call, fine)()

    def ready(self) -> str:
        return self._do("ready")

    def deploy(self) -> str:
        return self._do("deploy")

    def bill(self) -> Bill:
        self._do("bill")
        return Bill(usd=self.usd, lines=["some requests"])

    def destroy(self) -> str:
        return self._do("destroy")


def failing(error: BaseException) -> Callable[[], str]:
    def fail() -> str:
        raise error

    return fail


def check(name: str, perform: Callable[[], str] = fine, *, within_s: float = 10) -> Check:
    return Check(name=name, within_s=within_s, perform=perform)


def ran(
    stages: FakeStages, *checks: Check, told: list[Result] | None = None, budget_usd: float = 1.0, **plan: float
) -> Report:
    return run(
        stages,
        checks,
        Plan(budget_usd=budget_usd, estimate_usd=plan.pop("estimate_usd", 0.2), **plan),  # type: ignore[arg-type]
        clock=time.monotonic,
        told=(told if told is not None else []).append,
        progress=lambda _: None,
    )


def outcomes(report: Report) -> dict[str, Outcome]:
    return {result.name: result.outcome for result in report.results}


def test_a_run_is_readied_deployed_checked_counted_and_destroyed() -> None:
    stages, told = FakeStages(), list[Result]()
    report = ran(stages, check("offers"), check("split"), told=told)
    assert stages.calls == ["ready", "deploy", "bill", "destroy"]
    assert [result.name for result in report.results] == ["ready", "deploy", "offers", "split", "costs", "destroy"]
    assert set(outcomes(report).values()) == {Outcome.PASSED}
    assert (report.passed, report.bill.usd, told) == (True, 0.1, list(report.results))


def test_a_check_that_fails_or_is_skipped_stops_no_other() -> None:
    stages = FakeStages()
    report = ran(
        stages,
        check("broken", failing(ValueError("odd"))),
        check("wrong", failing(NotSo("2 of 3 came"))),
        check("elsewhere", failing(Skipped("AWS alone says so"))),
        check("group", failing(ExceptionGroup("side by side", [NotSo("one"), NotSo("one"), KeyError("two")]))),
        check("right"),
    )
    found = {result.name: (result.outcome, result.detail) for result in report.results}
    assert found["broken"] == (Outcome.FAILED, "ValueError: odd")
    assert found["wrong"] == (Outcome.FAILED, "2 of 3 came")
    assert found["elsewhere"] == (Outcome.SKIPPED, "AWS alone says so")
    assert found["group"] == (Outcome.FAILED, "one; KeyError: 'two'")
    assert found["right"] == (Outcome.PASSED, "as it should be")
    assert not report.passed
    assert stages.calls[-1] == "destroy"


def test_a_check_that_hangs_is_left_behind_at_its_deadline() -> None:
    stages, for_ever = FakeStages(), threading.Event()

    def hang() -> str:
        for_ever.wait()
        return "late"

    try:
        report = ran(stages, check("hangs", hang, within_s=SOON_S), check("next"))
    finally:
        for_ever.set()
    assert outcomes(report)["hangs"] is Outcome.FAILED
    assert "not done within" in report.results[2].detail
    assert outcomes(report)["next"] is Outcome.PASSED
    assert stages.calls[-1] == "destroy"


def test_a_run_that_is_out_of_time_destroys_and_tries_nothing_more() -> None:
    stages, for_ever = FakeStages(), threading.Event()
    stages.instead["deploy"] = lambda: str(for_ever.wait())
    try:
        report = ran(stages, check("never"), within_s=SOON_S)
    finally:
        for_ever.set()
    assert outcomes(report) == {"ready": Outcome.PASSED, "deploy": Outcome.FAILED, "destroy": Outcome.PASSED}


def test_checks_share_the_runs_time() -> None:
    stages, for_ever = FakeStages(), threading.Event()
    try:
        report = ran(stages, check("hangs", lambda: str(for_ever.wait())), check("never"), within_s=4 * SOON_S)
    finally:
        for_ever.set()
    assert outcomes(report)["never"] is Outcome.FAILED
    assert report.results[3].detail == "the run's time is up"


def test_no_run_is_planned_that_may_cost_more_than_its_budget() -> None:
    with pytest.raises(TooDear, match=r"may cost \$1\.20, more than --budget-usd 1"):
        Plan(budget_usd=1, estimate_usd=1.2)


def test_a_run_may_cost_less_than_a_dollar_by_its_limits() -> None:
    assert 0 < estimate_usd() < 1


def test_a_bill_has_a_line_for_all_that_was_used() -> None:
    made = bill([{"sqs_standard": 600_000, "lambda_calls": 0}, {"sqs_standard": 400_000}])
    assert made.usd == pytest.approx(price_list().prices["sqs_standard"].usd)
    [line] = made.lines
    assert line.startswith("1,000,000.000 SQS requests")


def test_a_run_that_has_cost_more_than_its_budget_fails() -> None:
    report = ran(FakeStages(usd=1.5))
    assert outcomes(report)["costs"] is Outcome.FAILED
    assert not report.passed


def test_where_the_account_lacks_something_nothing_is_deployed() -> None:
    stages = FakeStages(instead={"ready": failing(NotSo("no bootstrap"))})
    report = ran(stages, check("offers"))
    assert (stages.calls, report.passed) == (["ready"], False)


def test_a_deployment_that_fails_is_destroyed_unchecked() -> None:
    stages = FakeStages(instead={"deploy": failing(NotSo("rolled back"))})
    report = ran(stages, check("offers"))
    assert stages.calls == ["ready", "deploy", "destroy"]
    assert "offers" not in outcomes(report)


@pytest.mark.parametrize("call", ["deploy", "bill"])
def test_ctrl_c_destroys_first(call: str) -> None:
    stages, told = FakeStages(), list[Result]()

    def interrupted(result: Result) -> None:
        told.append(result)
        if result.name == {"deploy": "deploy", "bill": "offers"}[call]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(
            stages,
            [check("offers")],
            Plan(budget_usd=1, estimate_usd=0.2),
            clock=time.monotonic,
            told=interrupted,
            progress=lambda _: None,
        )
    assert stages.calls[-1] == "destroy"
    assert told[-1].name == "destroy"


def test_what_is_left_is_a_failure_and_says_so() -> None:
    report = ran(FakeStages(instead={"destroy": failing(NotSo("left: a bucket"))}))
    assert report.results[-1].detail == "left: a bucket"
    assert not report.passed


def test_stages_that_are_kept_stay() -> None:
    stages = FakeStages()
    ran(stages, check("offers"), keep=True)
    assert "destroy" not in stages.calls


def test_only_the_named_checks_run_in_their_own_order() -> None:
    checks = [check("a"), check("b"), check("c")]
    assert [each.name for each in chosen(checks, ["c", "a"])] == ["a", "c"]
    assert chosen(checks, []) == checks
    with pytest.raises(UnknownCheck, match="no such check: d; there are a, b, c"):
        chosen(checks, ["d"])
