"""What it costs: a million of each kind of message, and a month in which nothing comes, by parameters.

`python -m benchmarks.cost [--json] [--last] [--write] [-c KEY=VALUE]`: counts each kind of message anew, in some eight
minutes, and synthesizes the stacks for each set of parameters. With `--last` messages are as they were last counted;
`--write` keeps what was found, and writes the tables in the documents; `-c` adds a month of one's own parameters.
Prices are those of `prices.toml`. Free tiers aren't taken off. The product has what it says of costs from
`sluice/costs.json`, which is written with the tables.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import rest
from benchmarks.counts import BATCH_S, UNANSWERED, Counts, count
from benchmarks.limits import tables as limit_tables
from benchmarks.pool_costs import BROKER_S, QUICK_S
from benchmarks.prices import MONTH_H, Used, price_list, times, together
from benchmarks.report import Figure, report
from benchmarks.rest import PEERED, POLLED, SCHEDULED_S, Months, used_in_a_month
from sluice import costs as product
from sluice.costs import ENDPOINTS, CostTable, Numbers
from sluice.parameters import Parameters

PROJECT = Path(__file__).parents[1]
PLACE = re.compile(r"(?P<begin><!-- costs: (?P<name>[a-z -]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
MILLION = 1_000_000
MOST_USD = {"rendezvous": 10.0}
IDLE_MOST_USD = 5.0
# Each kind of message, as people call it.
MESSAGES = {
    "rendezvous": "rendezvous under load: an offer, the poll that takes it from the table, its answer",
    UNANSWERED: "offer over HTTP that finds no proxy, and is held until its client gives up",
    "exchanged": "message through an exchange",
    "exchanged_fifo": "the same, in order",
    "bridged": "message over a bridge",
    "bridged_fifo": "the same, in order",
    "split": "message through the splitter",
    "landed": "message from the main queue into a table",
}
WHOLE_WAY = ("exchanged", "bridged", "exchanged", "split", "landed")
# Sets of parameters on top of cdk.json's.
SETS: Mapping[str, Mapping[str, object]] = {
    "default": {},
    "least": {
        "sluice.rendezvous.events_exchange": "null",
        "sluice.splitting.queues": [],
        "sluice.federation.exchanges": [],
    },
    "resting": {"sluice.pipeline.resting": True},
    "two zones": {"sluice.pipeline.endpoint_subnets": 2},
    "streaming": {"sluice.pipeline.streaming": True},
}
MONTHS = {
    "default": "cdk.json's parameters: a pipeline that is run from time to time, with its endpoints",
    "least": "no split queue, no pipeline, no events",
    "resting": "`pipeline.resting`: no endpoints, and no job runs",
    "two zones": "the pipeline's endpoints in two zones",
    "streaming": "the land job streams all month",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """All that is known: `months` by sets of parameters."""

    counts: Counts
    months: Months

    @classmethod
    def kept(cls) -> "Costs":
        """Read what was last written."""
        return cls(counts=Counts.read(), months=rest.read())

    def million_usd(self, *kinds: str) -> float:
        """Dollars for a million messages that pass all of these."""
        return MILLION * sum(price_list().usd(self.counts.messages[kind]) for kind in kinds)

    def table(self) -> CostTable:
        """Write the table by which the product says what costs."""
        prices = price_list()
        used = used_in_a_month(self.counts)
        return CostTable(
            on=prices.on.isoformat(),
            region=prices.region,
            month_usd={thing: _rounded(prices.usd(quantities)) for thing, quantities in used.items()},
        )

    def used(self, numbers: Numbers) -> Used:
        """Say what things of a month use together."""
        used = used_in_a_month(self.counts)
        return together(*(times(used[thing], number) for thing, number in numbers.items()))

    def usd_by_part(self, name: str) -> Mapping[str, float]:
        """Dollars for each part of a month with a set of parameters."""
        return {part: price_list().usd(self.used(numbers)) for part, numbers in self.months[name].items()}

    def month_usd(self, name: str, *, endpoints: bool = True) -> float:
        """Dollars for a month at rest with a set of parameters, with the endpoints of its VPC or without."""
        return sum(usd for part, usd in self.usd_by_part(name).items() if endpoints or part != ENDPOINTS)

    @property
    def billed_usd(self) -> float:
        """Dollars for a month at rest by default, without endpoints, in an account that does nothing else."""
        parts = [self.used(numbers) for part, numbers in self.months["default"].items() if part != ENDPOINTS]
        return price_list().billed_usd(together(*parts))

    @property
    def peered_usd(self) -> float:
        """Dollars for what a site polls for as soon as it has a peer."""
        return price_list().usd(self.used(PEERED))

    @property
    def two_sites_usd(self) -> float:
        """Dollars for two sites with default parameters and a route between them, which has a trigger."""
        site_usd = self.month_usd("default", endpoints=False) + self.peered_usd
        return 2 * site_usd + price_list().usd(self.used(POLLED))


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON on the last line.")] = False,
    last: Annotated[bool, typer.Option("--last", help="Messages as they were last counted.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Keep the counts, write the documents' tables.")] = False,
    context: Annotated[list[str] | None, typer.Option("--context", "-c", help="Parameters of your own.")] = None,
) -> None:
    """Count, synthesize, and print dollars."""
    with Console(stderr=True).status("counting") as status:
        counts = Counts.read() if last else count(Parameters(), progress=status.update)
        own = {"yours": dict(each.split("=", 1) for each in context)} if context else {}
        months = {}
        for name, parameters in {**SETS, **own}.items():
            status.update(f"a month at rest: {name}")
            months[name] = rest.month_with(parameters)
    costs = Costs(counts=counts, months=months)
    if write:
        counts.keep()
        rest.keep({name: months[name] for name in SETS})
        product.FILE.write_text(json.dumps(asdict(costs.table()), indent=2) + "\n")
        for document in documents():
            document.write_text(written(document.read_text(), costs))
    report(f"dollars, with prices of {price_list().on}, {price_list().region}", figures(costs), as_json=as_json)


def figures(costs: Costs) -> dict[str, Figure]:
    """Name the figures by the keys that programs read."""
    found = {
        f"{kind}_million_usd": Figure(
            name=f"a million: {text}", value=costs.million_usd(kind), limit=MOST_USD.get(kind)
        )
        for kind, text in MESSAGES.items()
    }
    found["whole_way_million_usd"] = Figure(name="a million, all the way", value=costs.million_usd(*WHOLE_WAY))
    found["idle_month_usd"] = Figure(
        name="a month at rest, without endpoints",
        value=costs.month_usd("default", endpoints=False),
        limit=IDLE_MOST_USD,
    )
    found["idle_month_billed_usd"] = Figure(
        name="the same, less what is free in an account that does nothing else", value=costs.billed_usd
    )
    found["idle_month_endpoints_usd"] = Figure(
        name="the pipeline's endpoints beside it", value=costs.usd_by_part("default")[ENDPOINTS]
    )
    for name, text in MONTHS.items():
        key = f"idle_month_{name.replace(' ', '_')}_usd"
        found[key] = Figure(name=f"a month at rest: {text}", value=costs.month_usd(name))
    found["idle_month_two_sites_usd"] = Figure(name="a month at rest: two sites, a route", value=costs.two_sites_usd)
    found["held_month_usd"] = Figure(name="polls held, a month, as soon as any proxy polls", value=_held_usd())
    if "yours" in costs.months:
        found["yours_month_usd"] = Figure(name="a month at rest with your parameters", value=costs.month_usd("yours"))
    return found


def documents() -> list[Path]:
    """Find the documents that have tables of costs or limits."""
    return [path for path in sorted((PROJECT / "docs").glob("*.md")) if PLACE.search(path.read_text())]


def written(text: str, costs: Costs) -> str:
    """Make a document's text with its tables as they should be. Raises KeyError for a table that there isn't."""
    tables = {
        "messages": _messages(costs),
        "rest": _rest(costs),
        "prices": _prices(),
        **limit_tables(costs.counts, Parameters()),
    }
    return PLACE.sub(lambda found: found["begin"] + tables[found["name"]] + found["end"], text)


def _held_usd() -> float:
    return price_list().usd(rest.held_month(Parameters()))


def _messages(costs: Costs) -> str:
    used = [*price_list().prices]
    rows = ["| what | takes | a million |", "|---|---|---:|"]
    for kind, text in MESSAGES.items():
        quantities = costs.counts.messages[kind]
        takes = ", ".join(_quantity(name, quantities[name]) for name in used if quantities.get(name))
        rows.append(f"| {text} | {takes} | {_usd(costs.million_usd(kind))} |")
    rows.append(
        f"| all the way: exchange, bridge, exchange, splitter, table | | {_usd(costs.million_usd(*WHOLE_WAY))} |"
    )
    said = (
        f"\nCounted on {costs.counts.on} by `python -m benchmarks.cost`.\n"
        f"Assumed: a warm broker takes {BROKER_S:g} s, a proxy {QUICK_S:g} s, ten messages sent on {BATCH_S:g} s.\n"
    )
    return "\n".join([*rows, ""]) + said


def _quantity(name: str, quantity: float) -> str:
    """Say a quantity of a message in units that people read."""
    match name:
        case "lambda_gb_s":
            return f"{quantity * 1000:.1f} GB-ms"
        case "logs_gb":
            return f"{quantity * 1e9:,.0f} B of logs"
        case "endpoint_gb":
            return f"{quantity * 1e9:,.0f} B through an endpoint"
        case "emr_vcpu_hours":
            return f"{quantity * 3.6e6:.2f} ms of a vCPU"
        case "emr_gb_hours":
            return f"{quantity * 3.6e6:.2f} GB-ms of EMR"
    words = {
        "sqs_standard": "SQS",
        "sqs_fifo": "SQS FIFO",
        "lambda_calls": "calls",
        "dynamodb_writes": "write units",
        "dynamodb_reads": "read units",
    }
    return f"{quantity:.3g} {words[name]}"


def _rest(costs: Costs) -> str:
    names = [*SETS]
    usd = {name: costs.usd_by_part(name) for name in names}
    parts = [part for part in costs.months["default"] if any(usd[name][part] for name in names)]
    rows = [f"| | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    rows += [f"| {part} | {' | '.join(_usd(usd[name][part]) for name in names)} |" for part in parts]
    rows.append(f"| a month | {' | '.join(_usd(costs.month_usd(name)) for name in names)} |")
    told = "\n".join(f"- `{name}`: {text}" for name, text in MONTHS.items())
    default = together(*map(costs.used, costs.months["default"].values()))
    requests = default.get("sqs_standard", 0) + default.get("sqs_fifo", 0)
    return "\n".join(
        [
            *rows,
            "",
            told,
            "",
            f"By default without endpoints: {_usd(costs.month_usd('default', endpoints=False))}.",
            f"Of that an account pays {_usd(costs.billed_usd)} which does nothing else, as AWS gives some for nothing.",
            f"From a site's first peer on: {_usd(costs.peered_usd)} more.",
            f"Two sites with a route between them, without endpoints: {_usd(costs.two_sites_usd)}.",
            f"Polls held as soon as any proxy polls (`rendezvous.held_proxies_min`): {_usd(_held_usd())} more.",
            f"By default {requests / MILLION:.1f} million SQS requests; a month has {MONTH_H:g} hours.",
            f"Assumed: a schedule's call takes {SCHEDULED_S:g} s.",
            "",
        ]
    )


def _prices() -> str:
    prices = price_list()
    rows = [f"| {prices.region}, {prices.on} | dollars | free each month | page |", "|---|---:|---:|---|"]
    for price in prices.prices.values():
        per = "a million " if price.per == MILLION else ""
        free = f"{price.free:,}" if price.free else ""
        rows.append(f"| {per}{price.unit} | {price.usd:g} | {free} | {price.page} |")
    return "\n".join([*rows, ""])


def _rounded(dollars: float) -> float:
    return float(f"{dollars:.6g}")


def _usd(dollars: float) -> str:
    return f"${dollars:,.2f}"


if __name__ == "__main__":
    typer.run(main)
