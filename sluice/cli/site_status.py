"""`sluice status`: a whole site on one screen."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

import typer

from sluice.cli.output import console, is_json, show_pairs, show_table, tell, time_of
from sluice.cli.sites import SiteTyper
from sluice.cli.splitting.tables import show_sessions
from sluice.cli.terminal import SIGNALLED, show_error
from sluice.codec import convert
from sluice.operator.site_names import SiteOptions
from sluice.operator.site_status import AskedSite, Part, SiteReport, read_site
from sluice.splitting.operations import SessionView

SHOWN_RUNS = 5  # of the pipeline; `sluice pipeline status` has more
MIN_WATCH_S = 1.0

app = SiteTyper()


@app.command()
def status(
    *,
    site: SiteOptions,
    watch: Annotated[
        float | None, typer.Option(min=MIN_WATCH_S, metavar="SECONDS", help="Show it again so often, until ctrl-C.")
    ] = None,
) -> None:
    """Show the whole site: rendezvous, split queues, federation, the pipeline, dead letters.

    Exit code 1 where a part is there and can't be asked, or hasn't answered in time.
    """
    connection = site.connect()
    try:
        while True:
            report = read_site(AskedSite(connection, is_local=site.is_local))
            if watch is not None and not is_json():
                console().clear()
            tell(report.document, partial(show, report))
            if watch is None:
                raise typer.Exit(1 if report.failed else 0)
            time.sleep(watch)
    except KeyboardInterrupt:
        raise typer.Exit(SIGNALLED + signal.SIGINT) from None


def show(report: SiteReport) -> None:
    """All of it, part by part."""
    shown: Mapping[str, Callable[[Part], None]] = {
        "rendezvous": _show_rendezvous,
        "splitting": _show_splitting,
        "federation": _show_federation,
        "pipeline": _show_pipeline,
        "dead_letters": lambda part: show_table(
            ("of", "messages"), [(told, held["visible"] + held["in_flight"]) for told, held in part.items()]
        ),
    }
    console().print(f"[bold]site {report.region}[/bold]")
    for name, show_part in shown.items():
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
            ("offers queue", _words(part["offers_queue"])),
            ("proxies waiting", ", ".join(f"{number} {pool}" for pool, number in part["waiting_proxies"].items())),
            ("offers in two minutes", ", ".join(f"{number} {state}" for state, number in offers.items())),
        ]
    )


def _show_splitting(part: Part) -> None:
    sessions = Counter(queue["queue_id"] for session in part["sessions"] for queue in session["queues"])
    rows = [
        (each["queue_id"], _words(each["source"]), _words(each["main"]), sessions[each["queue_id"]])
        for each in part["queues"]
    ]
    show_table(("queue", "source", "main", "sessions"), rows)
    if part["sessions"]:
        show_sessions(convert(each, SessionView, of="session") for each in part["sessions"])


def _show_federation(part: Part) -> None:
    exchanges = ", ".join(f"{each.name} ({each.type})" for each in part["exchanges"])
    show_pairs([("site's tag", part["tag"]), ("exchanges", exchanges), ("bindings", part["bindings"])])
    if part["links"]:
        links = [(each["name"], each["peer"], each["state"], each["error"]) for each in part["links"]]
        show_table(("link", "peer", "state", "error"), links)
    if part["routes"]:
        columns = ("route", "from", "to", "state", "queue", "oldest waits, s", "lag, ms", "forwarded")
        show_table(columns, map(_route_row, part["routes"]))
    if part["lags_unknown"]:
        console().print(f"lags are unknown: {part['lags_unknown']}", style="dim", markup=False)


def _route_row(route: Part) -> tuple[object, ...]:
    return (
        route["name"],
        route["src"],
        route["dest"],
        route["state"],
        "at its peer" if route["queue"] is None else _words(route["queue"]),
        route.get("waiting_s"),
        route.get("forwarded_ms"),
        time_of(route["last_forward_ms"]),
    )


def _show_pipeline(part: Part) -> None:
    since = f" since {part['since']}" if part["since"] else ""
    show_pairs([("land should be", part["wanted"] + since), ("queue", _words(part["queue"]))])
    if part["runs"]:
        rows = [
            (run["run"], run["job"], run["state"], time_of(run["started_at_ms"]), run["detail"])
            for run in part["runs"][:SHOWN_RUNS]
        ]
        show_table(("run", "job", "state", "started", ""), rows)


def _words(held: Part) -> str:
    if "visible" not in held:
        return str(held.get("name", ""))
    return f"{held['visible']} waiting, {held['in_flight']} in flight"
