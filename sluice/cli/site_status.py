"""`sluice status`: shows the status of all parts of a site on one screen."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

import typer

from sluice.cli.output import console, format_time, is_json, print_result, show_pairs, show_table
from sluice.cli.sites import SiteCommands
from sluice.cli.splitting.tables import show_sessions
from sluice.cli.terminal import show_error
from sluice.codec import convert
from sluice.operator.site_names import SiteOptions
from sluice.operator.site_status import Part, SiteClient, SiteReport, read_site
from sluice.splitting.operations import SessionView

SHOWN_RUNS = 5  # The latest runs of jobs are shown; `sluice pipeline status` shows all runs.
MIN_WATCH_S = 1.0

app = SiteCommands()


@app.command("status")
def show_status(
    *,
    site: SiteOptions,
    watch: Annotated[
        float | None,
        typer.Option(min=MIN_WATCH_S, metavar="SECONDS", help="Refresh every SECONDS until ctrl-C."),
    ] = None,
) -> None:
    """Show the whole site: rendezvous, split queues, federation, the pipeline, dead letters.

    Exit code 1 if no part is deployed, or if a deployed part can't be read or doesn't answer in time.
    """
    connection = site.connect()
    while True:
        report = read_site(SiteClient(connection, is_local=site.is_local))
        if watch is not None and not is_json():
            console().clear()
        print_result(report.document, partial(show_report, report))
        if watch is None:
            raise typer.Exit(1 if report.failed or not report.parts else 0)
        time.sleep(watch)


def show_report(report: SiteReport) -> None:
    """Print a site's report: each part with its status, or the reason why the part has no status."""
    part_printers: Mapping[str, Callable[[Part], None]] = {
        "rendezvous": _show_rendezvous,
        "splitting": _show_splitting,
        "federation": _show_federation,
        "pipeline": _show_pipeline,
        "dead_letters": lambda part: show_table(
            ("source", "messages"), [(source, queue["visible"] + queue["in_flight"]) for source, queue in part.items()]
        ),
    }
    console().print(f"[bold]site {report.region}[/bold]")
    for name, show_part in part_printers.items():
        console().print(f"\n[bold reverse] {name.replace('_', ' ')} [/bold reverse]")
        if name in report.parts:
            show_part(report.parts[name])
        elif name in report.absent:
            console().print(report.absent[name], style="dim", markup=False)
        else:
            show_error(report.failed[name])


def _show_rendezvous(part: Part) -> None:
    offers = part["recent_offers"]
    show_pairs(
        [
            ("offers queue", _describe_queue(part["offers_queue"])),
            ("proxies waiting", ", ".join(f"{number} {pool}" for pool, number in part["waiting_proxies"].items())),
            ("offers, last 2 min", ", ".join(f"{number} {state}" for state, number in offers.items())),
        ]
    )


def _show_splitting(part: Part) -> None:
    sessions = Counter(queue["queue_id"] for session in part["sessions"] for queue in session["queues"])
    rows = [
        (
            queue["queue_id"],
            _describe_queue(queue["source"]),
            _describe_queue(queue["main"]),
            sessions[queue["queue_id"]],
        )
        for queue in part["queues"]
    ]
    show_table(("queue", "source", "main", "sessions"), rows)
    if part["sessions"]:
        show_sessions(convert(session, SessionView, of="session") for session in part["sessions"])


def _show_federation(part: Part) -> None:
    exchanges = ", ".join(f"{exchange.name} ({exchange.type})" for exchange in part["exchanges"])
    show_pairs([("site's tag", part["tag"]), ("exchanges", exchanges), ("bindings", part["bindings"])])
    if part["links"]:
        links = [(link["name"], link["peer"], link["state"], link["error"]) for link in part["links"]]
        show_table(("link", "peer", "state", "error"), links)
    if part["routes"]:
        columns = ("route", "from", "to", "state", "queue", "oldest message, s", "lag, ms", "last forward")
        rows = [
            (
                route["name"],
                route["src"],
                route["dest"],
                route["state"],
                "at the peer" if route["queue"] is None else _describe_queue(route["queue"]),
                route.get("waiting_s"),
                route.get("forwarded_ms"),
                format_time(route["last_forward_ms"]),
            )
            for route in part["routes"]
        ]
        show_table(columns, rows)
    if part["refusing_queues"]:
        show_table(("queue that refuses messages", "reason"), part["refusing_queues"].items())
    if part["lags_unknown"]:
        console().print(f"lags are unknown: {part['lags_unknown']}", style="dim", markup=False)


def _show_pipeline(part: Part) -> None:
    since = f" since {part['since']}" if part["since"] else ""
    show_pairs([("land: desired", part["wanted"] + since), ("queue", _describe_queue(part["queue"]))])
    if part["runs"]:
        rows = [
            (run["run"], run["job"], run["state"], format_time(run["started_at_ms"]), run["detail"])
            for run in part["runs"][:SHOWN_RUNS]
        ]
        show_table(("run", "job", "state", "started", "detail"), rows)


def _describe_queue(queue: Part) -> str:
    if "visible" not in queue:
        return str(queue.get("name", ""))
    return f"{queue['visible']} waiting, {queue['in_flight']} in flight"
