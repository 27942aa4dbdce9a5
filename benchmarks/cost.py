"""What it costs: a million of each kind of message, and a month in which nothing comes, by parameters.

`python -m benchmarks.cost [--json] [--last] [--write] [-c KEY=VALUE]`: counts each kind of message anew, in some eight
minutes, and synthesizes the stacks for each set of parameters. With `--last` messages are as they were last counted;
`--write` keeps what was found, and writes the tables in the documents; `-c` adds a month of one's own parameters.
Prices are those of `prices.toml`. Free tiers aren't taken off.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import rest
from benchmarks.counts import BATCH_S, RATE, UNANSWERED, Counts, count
from benchmarks.limits import tables as limit_tables
from benchmarks.polling import CAPPED, PROVISIONED, batches
from benchmarks.pool_costs import BROKER_S, QUICK_S, early_usd
from benchmarks.prices import MONTH_H, Used, price_list, times, together
from benchmarks.report import Figure, report
from benchmarks.rest import DAILY_JOB_S, PEERED, POLLED, SCHEDULED_S, Months, used_in_a_month
from benchmarks.site_templates import Numbers
from sluice.parameters import Parameters
from sluice.parameters.event_sources import Profile

PROJECT = Path(__file__).parents[1]
PLACE = re.compile(r"(?P<begin><!-- costs: (?P<name>[a-z -]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
MILLION = 1_000_000
MOST_USD = {"rendezvous": 10.0}
IDLE_MOST_USD = 5.0
COUNTING_WRITES = 6  # write units of a rendezvous whose three events each change two counters
# Each kind of message, as people call it.
MESSAGES = {
    "rendezvous": "rendezvous under load: an offer, the poll that takes it from the table, its answer",
    UNANSWERED: "offer over HTTP that finds no proxy, and is held until its client gives up",
    "exchanged": "message through an exchange, profile `latency`, full batches",
    "exchanged_fifo": "the same, in order",
    "exchanged_throughput": "through an exchange, profile `throughput`, full batches",
    "exchanged_alone": "through an exchange, alone in its batch: light load, either profile",
    "bridged": "message over a bridge",
    "bridged_fifo": "the same, in order",
    "split": "message through the splitter, profile `latency`, full batches",
    "split_throughput": "the same, profile `throughput`",
    "split_alone": "the same, alone in its batch: light load, either profile",
    "landed": "message from the main queue into a table",
}
AT_RATE = {
    "exchanged_at_rate": f"through an exchange at {RATE} messages a second, profile `latency`",
    "exchanged_provisioned": "the same, profile `provisioned`, with its two pollers",
}
# Quantities in units of their own: times what, in which text.
SCALED = {
    "lambda_gb_s": (1e3, "{:.1f} GB-ms"),
    "logs_gb": (1e9, "{:,.0f} B of logs"),
    "endpoint_gb": (1e9, "{:,.0f} B through an endpoint"),
    "emr_vcpu_hours": (3.6e6, "{:.2f} ms of a vCPU"),
    "emr_gb_hours": (3.6e6, "{:.2f} GB-ms of EMR"),
}
PROFILES = [f"{hop}{batches}" for hop in ("exchanged", "split") for batches in ("", "_throughput", "_alone")]
WHOLE_WAY = ("exchanged", "bridged", "exchanged", "split", "landed")
# Sets of parameters on top of cdk.json's.
SETS: Mapping[str, Mapping[str, object]] = {
    "default": {},
    "least": {
        "sluice.rendezvous.events_exchange": "null",
        "sluice.splitting.queues": [],
        "sluice.federation.exchanges": [],
    },
    "streaming": {"sluice.pipeline.streaming": True},
    "two zones": {"sluice.pipeline.streaming": True, "sluice.pipeline.endpoint_subnets": 2},
}
MONTHS = {
    "default": "cdk.json's parameters: a pipeline that was not started yet",
    "least": "no split queue, no pipeline, no events",
    "streaming": "the land job streams all month, with its endpoints",
    "two zones": "the same, with endpoints in two zones",
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

    def used(self, numbers: Numbers) -> Used:
        """Say what things of a month use together."""
        used = used_in_a_month(self.counts)
        return together(*(times(used[thing], number) for thing, number in numbers.items()))

    def usd_by_part(self, name: str) -> Mapping[str, float]:
        """Dollars for each part of a month with a set of parameters."""
        return {part: price_list().usd(self.used(numbers)) for part, numbers in self.months[name].items()}

    def month_usd(self, name: str) -> float:
        """Dollars for a month at rest with a set of parameters."""
        return sum(self.usd_by_part(name).values())

    @property
    def billed_usd(self) -> float:
        """Dollars for a month at rest by default, in an account that does nothing else."""
        return price_list().billed_usd(together(*map(self.used, self.months["default"].values())))

    @property
    def peered_usd(self) -> float:
        """Dollars for what a site polls for as soon as it has a peer."""
        return price_list().usd(self.used(PEERED))

    @property
    def two_sites_usd(self) -> float:
        """Dollars for two sites with default parameters and a route between them, which has a trigger."""
        site_usd = self.month_usd("default") + self.peered_usd
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
        for document in documents():
            document.write_text(written(document.read_text(), costs))
    report(f"dollars, with prices of {price_list().on}, {price_list().region}", figures(costs), as_json=as_json)


def figures(costs: Costs) -> dict[str, Figure]:
    """Name the figures by the keys that programs read."""
    found = {
        f"{kind}_million_usd": Figure(
            name=f"a million: {text}", value=costs.million_usd(kind), limit=MOST_USD.get(kind)
        )
        for kind, text in (MESSAGES | AT_RATE).items()
    }
    for kind in PROFILES:
        used = costs.counts.messages[kind]
        found[f"{kind}_million_requests"] = Figure(
            name=f"SQS requests: {MESSAGES[kind]}", value=MILLION * used["sqs_standard"]
        )
        found[f"{kind}_million_invocations"] = Figure(
            name=f"invocations: {MESSAGES[kind]}", value=MILLION * used["lambda_calls"]
        )
    found["whole_way_million_usd"] = Figure(name="a million, all the way", value=costs.million_usd(*WHOLE_WAY))
    found["idle_month_billed_usd"] = Figure(
        name="a month at rest, less what is free in an account that does nothing else", value=costs.billed_usd
    )
    for name, text in MONTHS.items():
        key = f"idle_month_{name.replace(' ', '_')}_usd"
        limit = IDLE_MOST_USD if name == "default" else None
        found[key] = Figure(name=f"a month at rest: {text}", value=costs.month_usd(name), limit=limit)
    found["idle_month_two_sites_usd"] = Figure(name="a month at rest: two sites, a route", value=costs.two_sites_usd)
    found["run_hour_usd"] = Figure(name="an hour of a job run, with its endpoints", value=_run_hour_usd())
    found["daily_jobs_month_usd"] = Figure(name="daily jobs, a month", value=_daily_jobs_usd())
    found["held_month_usd"] = Figure(name="polls held, a month, as soon as any proxy polls", value=_held_usd())
    if "yours" in costs.months:
        found["yours_month_usd"] = Figure(name="a month at rest with your parameters", value=costs.month_usd("yours"))
    return found


def documents() -> list[Path]:
    """Find the documents that have tables of costs or limits."""
    paths = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
    return [path for path in paths if PLACE.search(path.read_text())]


def written(text: str, costs: Costs) -> str:
    """Make a document's text with its tables as they should be. Raises KeyError for a table that there isn't."""
    tables = {
        "summary": _summary(costs),
        "besides": _besides(),
        "polls": f"A hundred polls a second that are not held cost {_usd(early_usd(100))} a month.\n",
        "messages": _messages(costs),
        "rest": _rest(costs),
        "prices": _prices(),
        "rates": _rates(costs),
        **limit_tables(costs.counts, Parameters()),
    }
    return PLACE.sub(lambda found: found["begin"] + tables[found["name"]] + found["end"], text)


def _held_usd() -> float:
    return price_list().usd(rest.held_month(Parameters()))


def _run_hour_usd() -> float:
    return price_list().usd(rest.used_in_an_hour(rest.resources_of_a_run(Parameters().pipeline)))


def _daily_jobs_usd() -> float:
    return price_list().usd(rest.daily_jobs_month(Parameters().pipeline))


def _summary(costs: Costs) -> str:
    """Say in a few lines what people ask first."""
    idle, run = costs.month_usd("default"), _usd(_run_hour_usd())
    stream = _usd(costs.month_usd("streaming") - idle)
    exchange, bridge, split, table, rendezvous = (
        _usd(costs.million_usd(kind)) for kind in ("exchanged", "bridged", "split", "landed", "rendezvous")
    )
    return (
        f"- A site without traffic costs {_usd(idle)} a month; "
        "`python -m benchmarks.cost --last -c NAME=VALUE` computes it for your parameters.\n"
        f"- A million rendezvous cost {rendezvous}, and more if proxies' polls are held.\n"
        f"- A million messages cost {exchange} for each exchange, {bridge} for each bridge, "
        f"{split} through the splitter, and {table} into a table.\n"
        f"- The pipeline costs nothing before its first start; then {run} for an hour of a run, "
        f"or {stream} a month if it streams.\n"
    )


def _besides() -> str:
    usd = price_list().usd
    return (
        "- Counting rendezvous events: a few cents a million from one country, "
        f"{_usd(usd({'dynamodb_writes': COUNTING_WRITES * MILLION}))} at most from two hundred.\n"
        f"- Traffic to another region: {_usd(usd({'transfer_gb': 1}))} a million at 1 KB.\n"
    )


def _rates(costs: Costs) -> str:
    """Say what profiles make of a steady rate: how full batches are, how long a message takes, what a million costs."""
    parameters = Parameters().federation
    window_ms = parameters.batching_window_s * 1000
    rows = [f"| at {RATE} messages a second | messages a batch | handled after, at the median | a million |"]
    rows.append("|---|---:|---:|---:|")
    for profile, kind, polling in (
        (Profile.LATENCY, "exchanged_at_rate", CAPPED),
        (Profile.PROVISIONED, "exchanged_provisioned", PROVISIONED),
    ):
        found = batches(polling, rate=RATE, call_s=BATCH_S)
        rows.append(f"| `{profile}` | {found.size:.1f} | {found.handled_ms:.0f} ms | {_usd(costs.million_usd(kind))} |")
    waits_ms = window_ms / 2 + BATCH_S * 1000
    size = min(RATE * parameters.batching_window_s, parameters.batch_size)
    rows.append(
        f"| `{Profile.THROUGHPUT}` | {size} | {waits_ms:.0f} ms | {_usd(costs.million_usd('exchanged_throughput'))} |"
    )
    poller_usd = price_list().usd(costs.used({"provisioned poller": 1}))
    return (
        "\n".join([*rows, ""])
        + f"\nA provisioned poller costs {_usd(poller_usd)} a month, and a queue has two at least.\n"
    )


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
    if name in SCALED:
        times, text = SCALED[name]
        return text.format(quantity * times)
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
            f"By default an account that does nothing else pays {_usd(costs.billed_usd)}, after AWS's free tier.",
            f"From a site's first peer on: {_usd(costs.peered_usd)} more.",
            f"Two sites with a route between them: {_usd(costs.two_sites_usd)}.",
            f"An hour of a job run, with a driver, an executor and endpoints: {_usd(_run_hour_usd())}.",
            "AWS charges a part of an endpoint's hour as a whole one.",
            f"Daily jobs, once the pipeline was started: {_usd(_daily_jobs_usd())} more.",
            f"Polls held as soon as any proxy polls (`rendezvous.held_proxies_min`): {_usd(_held_usd())} more.",
            f"By default {requests / MILLION:.1f} million SQS requests; a month has {MONTH_H:g} hours.",
            f"Assumed: a schedule's call takes {SCHEDULED_S:g} s, a daily job {DAILY_JOB_S / 60:g} minutes.",
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
