"""`make smoke`: deploys two throw-away stages, checks what only AWS can answer, counts the costs, destroys.

Exit code 0 only where nothing failed and nothing is left.
"""

import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from sluice.cli.output import AsJson, note, show_error, show_json
from sluice.cli.sites import Profile, Region
from sluice.costs.prices import price_list
from sluice.demo import splitting
from sluice.errors import BadConfiguration, SluiceError
from sluice.smoke import pipeline, platform, rendezvous
from sluice.smoke.costs import estimate_usd
from sluice.smoke.federation import Routes
from sluice.smoke.runs import Check, NotSo, Plan, Report, Result, chosen, run
from sluice.smoke.stages import Stages


def checks_of(stages: Stages) -> Sequence[Check]:
    """List all, in order: what provokes faults comes after what looks for alarms."""
    routes = Routes(stages)
    here = stages.here
    return [
        Check(name="offers", within_s=300, perform=partial(rendezvous.offers, here)),
        Check(name="https", within_s=180, perform=partial(rendezvous.https, here)),
        Check(name="stranger", within_s=60, perform=partial(rendezvous.stranger, here)),
        Check(name="split", within_s=300, perform=partial(_split, stages)),
        Check(name="sizes", within_s=180, perform=routes.sizes),
        Check(name="bridge", within_s=480, perform=routes.bridge),
        Check(name="pause", within_s=480, perform=routes.pause),
        Check(name="pipeline", within_s=1_200, perform=partial(pipeline.land, stages)),
        Check(name="alarms", within_s=60, perform=partial(platform.alarms, stages)),
        Check(name="mend", within_s=480, perform=routes.mend),
        Check(name="close", within_s=480, perform=routes.close),
        Check(name="dead-letters", within_s=120, perform=partial(platform.dead_letters, stages)),
        Check(name="functions", within_s=120, perform=partial(platform.functions, stages)),
    ]


def _split(stages: Stages) -> str:
    divided = splitting.run(stages.here.connection, progress=lambda _: None)
    if not divided.is_right():
        raise NotSo(", ".join(f"{whose}: {number}" for whose, number in divided.rows()))
    return f"each session its own, the rest to the main queue; ready after {divided.ready_s:.0f} s"


def main(
    *,
    region: Region = None,
    profile: Profile = None,
    local: Annotated[bool, typer.Option("--local", help="On an embedded cloud of its own, in place of AWS.")] = False,
    budget_usd: Annotated[float, typer.Option(min=0, help="What it may cost.")] = 1.0,
    keep: Annotated[bool, typer.Option("--keep", help="Don't destroy, to look at it. It costs on.")] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="CHECK", help="This check; repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Deploy two throw-away stages, check them, count what it cost, and destroy them."""
    if local and (region or profile or keep):
        raise typer.BadParameter("--local has a region and an account of its own, and keeps nothing")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends a job of CI ends it so
    stages: Stages | None = None
    try:
        plan = Plan(budget_usd=budget_usd, estimate_usd=estimate_usd(), keep=keep)
        note(f"up to ${plan.estimate_usd:.2f}, with prices of {price_list().on}; it may cost ${budget_usd:g}")
        stages = Stages.on_cloud() if local else Stages.on_aws(region=region, profile=profile)
        checks = chosen(checks_of(stages), only or ())
        report = run(stages, checks, plan, clock=time.monotonic, told=_tell, progress=lambda name: note(f"{name} …"))
    except SluiceError as error:
        show_error(str(error))
        sys.exit(2 if isinstance(error, BadConfiguration) else 1)
    finally:
        if stages and stages.cloud:
            stages.cloud.stop()
    for line in report.bill.lines:
        note(f"  {line}")
    if keep:
        note("\n".join(["kept; it goes by", *(f"  {command}" for command in stages.removal())]))
    if as_json:
        show_json(_document(stages, report))
    sys.exit(0 if report.passed else 1)


def _tell(result: Result) -> None:
    note(f"{result.name:14} {result.outcome:8} {result.seconds:5.0f} s  {result.detail}")


def _document(stages: Stages, report: Report) -> dict[str, Any]:
    return {
        "passed": report.passed,
        "stages": [site.stage for site in stages.both],
        "checks": [to_builtins(result) for result in report.results],
        "usd": report.bill.usd,
        "budget_usd": report.budget_usd,
        "used": list(report.bill.lines),
    }


if __name__ == "__main__":
    typer.run(main)
