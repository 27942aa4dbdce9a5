"""Computes costs: a million messages of each kind, and a month without messages for several sets of parameters.

`python -m benchmarks.cost [--json] [--last] [--write] [-c KEY=VALUE]` counts the use of each kind of message, which
takes about eight minutes, and synthesizes the stacks for each set of parameters. `--last` uses the stored counts;
`--write` stores the results and updates the tables in the documents; `-c` adds a month with parameters of your own.
Prices are those of `prices.toml`, without free tiers.
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
from benchmarks.pool_costs import BROKER_S, DELETE_S, QUICK_S, early_usd
from benchmarks.pool_population import OLDER_EVERY_MS
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
COUNTING_WRITES = 6  # write units of a rendezvous, whose three events each change two counters
# The labels of the kinds of messages in tables.
MESSAGES = {
    "rendezvous": "rendezvous under load: an offer, the poll that gets it from the table, the answer",
    UNANSWERED: "offer over HTTP that finds no proxy and waits until its client gives up",
    "exchanged": "message through an exchange, profile `latency`, full batches",
    "exchanged_fifo": "message through a FIFO exchange",
    "exchanged_throughput": "message through an exchange, profile `throughput`, full batches",
    "exchanged_alone": "message through an exchange, alone in its batch (light load, either profile)",
    "bridged": "message over a bridge",
    "bridged_fifo": "message over a FIFO bridge",
    "split": "message through the splitter, profile `latency`, full batches",
    "split_throughput": "message through the splitter, profile `throughput`",
    "split_alone": "message through the splitter, alone in its batch (light load, either profile)",
    "landed": "message from the main queue into a table",
}
AT_RATE = {
    "exchanged_at_rate": f"message through an exchange at {RATE} messages a second, profile `latency`",
    "exchanged_provisioned": f"message through an exchange at {RATE} messages a second, profile `provisioned`",
}
# Quantities that are shown in smaller units: the factor, and the text.
SCALED = {
    "lambda_gb_s": (1e3, "{:.1f} GB-ms"),
    "logs_gb": (1e9, "{:,.0f} B of logs"),
    "endpoint_gb": (1e9, "{:,.0f} B through an endpoint"),
    "emr_vcpu_hours": (3.6e6, "{:.2f} ms of a vCPU"),
    "emr_gb_hours": (3.6e6, "{:.2f} GB-ms of EMR"),
}
PROFILES = [f"{hop}{batches}" for hop in ("exchanged", "split") for batches in ("", "_throughput", "_alone")]
WHOLE_WAY = ("exchanged", "bridged", "exchanged", "split", "landed")
# Sets of parameters, in addition to those of cdk.json.
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
    "two zones": "a streaming pipeline with endpoints in two zones",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """All counts, with `months` by set of parameters."""

    counts: Counts
    months: Months

    @classmethod
    def kept(cls) -> "Costs":
        """Read the stored results."""
        return cls(counts=Counts.read(), months=rest.read())

    def million_usd(self, *kinds: str) -> float:
        """Return the dollars for a million messages that take all of these steps."""
        return MILLION * sum(price_list().usd(self.counts.messages[kind]) for kind in kinds)

    def used(self, numbers: Numbers) -> Used:
        """Add up the use of several parts of a month."""
        used = used_in_a_month(self.counts)
        return together(*(times(used[thing], number) for thing, number in numbers.items()))

    def usd_by_part(self, name: str) -> Mapping[str, float]:
        """Return the dollars of each part of a month with a set of parameters."""
        return {part: price_list().usd(self.used(numbers)) for part, numbers in self.months[name].items()}

    def month_usd(self, name: str) -> float:
        """Return the dollars of a month without messages with a set of parameters."""
        return sum(self.usd_by_part(name).values())

    @property
    def billed_usd(self) -> float:
        """Return the dollars of an idle month with default parameters, in an account without other use."""
        return price_list().billed_usd(together(*map(self.used, self.months["default"].values())))

    @property
    def peered_usd(self) -> float:
        """Return the dollars of the queues that a site polls from its first peer on."""
        return price_list().usd(self.used(PEERED))

    @property
    def two_sites_usd(self) -> float:
        """Return the dollars of two sites with default parameters and a route between them, which has a trigger."""
        site_usd = self.month_usd("default") + self.peered_usd
        return 2 * site_usd + price_list().usd(self.used(POLLED))


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on the last line, too.")] = False,
    last: Annotated[bool, typer.Option("--last", help="Use the stored counts instead of deploying.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Store the counts and update the tables in docs/.")] = False,
    context: Annotated[
        list[str] | None, typer.Option("--context", "-c", help="A parameter to change, as NAME=VALUE.")
    ] = None,
) -> None:
    """Count, synthesize, and print the costs."""
    with Console(stderr=True).status("counting") as status:
        counts = Counts.read() if last else count(Parameters(), progress=status.update)
        own = {"yours": dict(each.split("=", 1) for each in context)} if context else {}
        months = {}
        for name, parameters in {**SETS, **own}.items():
            status.update(f"idle month: {name}")
            months[name] = rest.month_with(parameters)
    costs = Costs(counts=counts, months=months)
    if write:
        counts.keep()
        rest.keep({name: months[name] for name in SETS})
        for document in documents():
            document.write_text(written(document.read_text(), costs))
    report(f"Costs in dollars, prices of {price_list().on} in {price_list().region}", figures(costs), as_json=as_json)


def figures(costs: Costs) -> dict[str, Figure]:
    """Return the figures for programs, by key."""
    found = {
        f"{kind}_million_usd": Figure(
            name=f"dollars for a million: {text}", value=costs.million_usd(kind), limit=MOST_USD.get(kind)
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
    found["whole_way_million_usd"] = Figure(
        name="dollars for a million through all of these", value=costs.million_usd(*WHOLE_WAY)
    )
    found["idle_month_billed_usd"] = Figure(name="idle month after AWS's free tier", value=costs.billed_usd)
    for name, text in MONTHS.items():
        key = f"idle_month_{name.replace(' ', '_')}_usd"
        limit = IDLE_MOST_USD if name == "default" else None
        found[key] = Figure(name=f"idle month: {text}", value=costs.month_usd(name), limit=limit)
    found["idle_month_two_sites_usd"] = Figure(name="idle month: two sites with a route", value=costs.two_sites_usd)
    found["run_hour_usd"] = Figure(name="an hour of a running job, with its VPC endpoints", value=_run_hour_usd())
    found["daily_jobs_month_usd"] = Figure(name="daily jobs for a month", value=_daily_jobs_usd())
    found["held_month_usd"] = Figure(name="a month of waiting polls, from the first proxy on", value=_held_usd())
    if "yours" in costs.months:
        found["yours_month_usd"] = Figure(name="idle month with the given parameters", value=costs.month_usd("yours"))
    return found


def documents() -> list[Path]:
    """List the documents with tables of costs or limits."""
    paths = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
    return [path for path in paths if PLACE.search(path.read_text())]


def written(text: str, costs: Costs) -> str:
    """Return a document's text with current tables. Raises KeyError for an unknown table."""
    tables = {
        "summary": _summary(costs),
        "besides": _besides(),
        "polls": f"A hundred polls a second that are not held cost {_usd(early_usd(100))} a month; "
        f"{100 * OLDER_EVERY_MS // 1000} proxies that are older than Snowflake 2.14.0 make as many.\n",
        "messages": _messages(costs),
        "rest": _rest(costs),
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
    """Write the summary for the README."""
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
    rows = ["| kind of message | uses | a million |", "|---|---|---:|"]
    for kind, text in MESSAGES.items():
        quantities = costs.counts.messages[kind]
        takes = ", ".join(_quantity(name, quantities[name]) for name in used if quantities.get(name))
        rows.append(f"| {text} | {takes} | {_usd(costs.million_usd(kind))} |")
    rows.append(
        f"| all of these: exchange, bridge, exchange, splitter, table | | {_usd(costs.million_usd(*WHOLE_WAY))} |"
    )
    said = (
        f"\nCounted on {costs.counts.on} by `python -m benchmarks.cost`.\n"
        f"Assumed: a warm broker takes {BROKER_S:g} s, a proxy {QUICK_S:g} s and {DELETE_S:g} s for a deletion, "
        f"ten messages sent on {BATCH_S:g} s.\n"
    )
    return "\n".join([*rows, ""]) + said


def _quantity(name: str, quantity: float) -> str:
    """Format a quantity of a message in readable units."""
    if name in SCALED:
        times, text = SCALED[name]
        return text.format(quantity * times)
    words = {
        "sqs_standard": "SQS requests",
        "sqs_fifo": "SQS FIFO requests",
        "lambda_calls": "Lambda calls",
        "dynamodb_writes": "write units",
        "dynamodb_reads": "read units",
    }
    number = f"{quantity:.3g}"
    return f"{number} {words[name].removesuffix('s') if number == '1' else words[name]}"


def _rest(costs: Costs) -> str:
    names = [*SETS]
    usd = {name: costs.usd_by_part(name) for name in names}
    parts = [part for part in costs.months["default"] if any(usd[name][part] for name in names)]
    rows = [f"| cost of | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
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
            f"If even one proxy's polls are held (`rendezvous.held_proxies_min`): {_usd(_held_usd())} more.",
            f"By default {requests / MILLION:.1f} million SQS requests; a month has {MONTH_H:g} hours.",
            f"Assumed: a schedule's call takes {SCHEDULED_S:g} s, a daily job {DAILY_JOB_S / 60:g} minutes.",
            "",
        ]
    )


def _rounded(dollars: float) -> float:
    return float(f"{dollars:.6g}")


def _usd(dollars: float) -> str:
    return f"${dollars:,.2f}"


if __name__ == "__main__":
    typer.run(main)
