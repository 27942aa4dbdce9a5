"""How many clients a large population of volunteers serves, how soon, and what a month of it costs.

`python -m benchmarks.pool [--json] [--volunteers N] [--offers-a-day N] [--older PART] [--seed N] [--hours H]`: a site
that nobody knows yet, and all volunteers at once, two hours before the day's least demand. What follows up to its peak
is counted, twelve hours in which every hour's demand stands for two of a day; with `--hours`, the first of them.

With `--older` a part of the volunteers is older than proxies that obey `NextPoll`, and polls every five seconds
whatever it is told. What such polls cost that come before their turn is also reckoned for a thousand volunteers, as
nothing that a site says makes them fewer. In a second run, at the peak, a twentieth of the volunteers is hostile: they
poll ten times as often as told and never answer. Then a machine with a /64 of IPv6 beside a hundred proxies, proxies
that were told to come more often in a burst of demand, and small sites, where a few proxies have to do.

A broker that holds everyone denies where nobody waits: each volunteer that isn't serving waits for ten seconds of
thirty, so that is reckoned for each offer and not played.
"""

import statistics
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.pool_cases import (
    CASES,
    DAY_LATER,
    compare_with_machines,
    honest_part,
    served,
    unanswered_after_burst,
)
from benchmarks.pool_costs import early_usd, month
from benchmarks.pool_population import OLDER_EVERY_MS, Demand, Manner, Outcome, Population, Run
from benchmarks.prices import MONTH_H
from benchmarks.report import Figure, report
from sluice.times import HOUR_MS, MINUTE_MS

DENIED_EXCESS = 0.01
COST_MONTH_USD = 150.0
HONEST_SHARE = 0.9
HOSTILE = 0.05
OLDER = 1_000
MACHINE_POLLS_PER_S = (10.0, 100.0)
SETTLES_H = 2
LEAST_HOUR, PEAK_HOUR = 4, 16
HOSTILE_HOURS = 2.0
BEGINNING_MS = 10 * MINUTE_MS
SMALL_SEEDS = 5


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    volunteers: Annotated[int, typer.Option(min=1)] = 100_000,
    offers_a_day: Annotated[float, typer.Option(min=1)] = 300_000,
    older: Annotated[float, typer.Option(min=0, max=1)] = 0.0,
    seed: int = 1,
    hours: Annotated[float, typer.Option(min=0.1, max=12)] = 12.0,
) -> None:
    """Play all, and print it."""
    demand = Demand(offers_a_day=offers_a_day)
    population = Population(volunteers=volunteers, older=older)
    beginning_usd = _beginning_usd(population, demand, seed=seed)
    day, calls = _counted(population, demand, seed=seed, hour=LEAST_HOUR, hours=hours)
    hostile, _ = _counted(replace(population, hostile=HOSTILE), demand, seed=seed, hour=PEAK_HOUR, hours=HOSTILE_HOURS)
    costs = month(day, days=hours / 24, calls=calls)
    _print_costs(costs)
    figures = _figures(day, hostile, costs)
    figures["beginning_usd"] = Figure(name="the first ten minutes, in dollars", value=beginning_usd)
    report("Rendezvous: a large pool", figures | _fairness() | _small(), as_json=as_json)


def _counted(
    population: Population, demand: Demand, *, seed: int, hour: int, hours: float
) -> tuple[Outcome, dict[str, float]]:
    """Play up to `hour`, and the hours that are counted; their outcome, and the calls for counts and turns in them."""
    since_ms = SETTLES_H * HOUR_MS
    run = Run(population, demand, seed=seed, begun_ms=(hour - SETTLES_H) * HOUR_MS, since_ms=since_ms)
    run.until(since_ms)
    before = dict(run.store.calls)
    outcome = run.until(int(hours * HOUR_MS))
    return outcome, {call: times - before.get(call, 0) for call, times in run.store.calls.items()}


def _beginning_usd(population: Population, demand: Demand, *, seed: int) -> float:
    """Say what the first minutes cost of a site that knows nothing of those who poll it."""
    run = Run(population, demand, seed=seed)
    outcome, days = run.until(BEGINNING_MS), BEGINNING_MS / (24 * HOUR_MS)
    return sum(month(outcome, days=days, calls=run.store.calls).values()) * days * 24 / MONTH_H


def _figures(day: Outcome, hostile: Outcome, costs: dict[str, float]) -> dict[str, Figure]:
    denied, all_held = day.denied / day.offers, day.held_all_denied / day.offers
    waits = statistics.quantiles(day.waits_ms, n=100)
    usd = sum(costs.values())
    return {
        "denied_ratio": Figure(name="offers denied", value=denied),
        "denied_excess": Figure(
            name="more than", value=denied - all_held, limit=DENIED_EXCESS, compared_to="a broker that holds everyone"
        ),
        "wait_ms_p50": Figure(name="an offer waits, ms, median", value=waits[49]),
        "wait_ms_p99": Figure(name="the 99th percentile", value=waits[98]),
        "cost_month_usd": Figure(
            name="a month, in dollars", value=usd, limit=COST_MONTH_USD, ratio=usd / COST_MONTH_USD, compared_to="limit"
        ),
        "older_1000_month_usd": Figure(
            name=f"more for {OLDER:,} volunteers that are older", value=early_usd(1000 * OLDER / OLDER_EVERY_MS)
        ),
        "honest_share": Figure(
            name=f"offers to honest proxies, at least {HONEST_SHARE}",
            value=1 - hostile.matched[Manner.HOSTILE] / max(hostile.matched.total(), 1),
            ratio=(1 - hostile.matched[Manner.HOSTILE] / max(hostile.matched.total(), 1)) / (1 - HOSTILE),
            compared_to="their share of all",
        ),
    }


def _fairness() -> dict[str, Figure]:
    """Play machines with a /64 each, and a burst of demand."""
    beside = [compare_with_machines(polls_per_s=polls_per_s) for polls_per_s in MACHINE_POLLS_PER_S]
    many = compare_with_machines(volunteers=4, machines=10, polls_per_s=10.0, every_ms=500)
    return {
        "ipv6_share": Figure(
            name="a /64's share of offers beside 100 proxies", value=max(each.share for each in beside), limit=0.15
        ),
        "ipv6_next_poll_s": Figure(
            name="seconds that these are told to wait, without it 20", value=max(each.next_poll_s for each in beside)
        ),
        "cooldown_bound": Figure(name="offers of ten addresses, to those they may get", value=many.bound, limit=1.0),
        "unanswered_after_burst": Figure(
            name="offers denied after a burst of demand", value=unanswered_after_burst(), limit=0.02
        ),
    }


def _small() -> dict[str, Figure]:
    """Play the small sites; the mean of some seeds."""
    figures = {
        f"small_{name}": Figure(
            name=f"{name.replace('_', ' ')}: served by honest ones, at least {least:g}",
            value=statistics.mean(honest_part(served(case, seed=seed)) for seed in range(SMALL_SEEDS)),
        )
        for name, (case, least) in CASES.items()
    }
    later = {
        f"small_{name}_later": Figure(
            name=f"{name.replace('_', ' ')}, a day later",
            value=honest_part(served(CASES[name][0], seed=1, after_ms=after_ms)),
        )
        for name, after_ms in DAY_LATER.items()
    }
    return figures | later


def _print_costs(costs: dict[str, float]) -> None:
    table = Table(title="A month, in dollars")
    table.add_column("")
    table.add_column("", justify="right")
    for name, usd in costs.items():
        table.add_row(name, f"{usd:,.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
