"""`sluice status`: a whole site on one screen, from what each of its parts says of itself.

A part that isn't deployed says so, one that can't be asked says why; the others are shown all the same.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from sluice.cli.output import AsJson, console, plain, show_error, show_pairs, show_table, tell
from sluice.cli.site_names import SiteOptions

if TYPE_CHECKING:  # boto3 takes longer than all of --help
    from sluice.aws.operator.connections import Connection
    from sluice.federation.operations import BridgeView

SHOWN_RUNS = 5  # of the pipeline; `sluice pipeline status` has more
OPERATIONS = "SluiceOperations"

Part = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReport:
    """What the parts say, by name. `absent` aren't deployed, `failed` can't be asked: each with the reason."""

    region: str
    parts: Mapping[str, Part]
    absent: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """For `--json`: a part that says nothing is null, and why is in `absent` or `failed`."""
        names = [*self.parts, *self.absent, *self.failed]
        said = {name: self.parts.get(name) for name in names}
        return {"region": self.region, **said, "absent": dict(self.absent), "failed": dict(self.failed)}


def status(*, site: SiteOptions, as_json: AsJson = False) -> None:
    """Show the whole site: rendezvous, split queues, federation, the pipeline, dead letters.

    Exit code 1 where a part is there and can't be asked.
    """
    report = read(site)
    tell(report.document, lambda: show(report), as_json=as_json)
    if report.failed:
        raise typer.Exit(1)


def read(site: SiteOptions) -> SiteReport:
    """Ask every part. Raises `NotUsable` where all fail for one reason, as without credentials."""
    from sluice.aws.operator.deployment import NotDeployed, NotUsable  # noqa: PLC0415 - boto3 takes longer than all of --help
    from sluice.errors import SluiceError  # noqa: PLC0415 - see above

    connection = site.connect()
    readers: Mapping[str, Callable[[], Part]] = {
        "rendezvous": lambda: _rendezvous(connection),
        "splitting": lambda: _splitting(connection),
        "federation": lambda: _federation(connection),
        "pipeline": lambda: _pipeline(connection, is_local=site.is_local),
        "dead_letters": lambda: _dead_letters(connection),
    }
    parts, absent, failed = {}, {}, {}
    for name, reader in readers.items():
        try:
            parts[name] = reader()
        except NotDeployed as error:
            absent[name] = str(error)
        except SluiceError as error:
            failed[name] = str(error)
    reasons = set(failed.values())
    if len(failed) == len(readers) and len(reasons) == 1:
        raise NotUsable(reasons.pop())
    return SiteReport(region=connection.region, parts=parts, absent=absent, failed=failed)


# What each part says


def _rendezvous(connection: "Connection") -> Part:
    from sluice.aws.operator.rendezvous_status import read_status  # noqa: PLC0415 - boto3 takes longer than --help
    from sluice.cli.rendezvous.status import document  # noqa: PLC0415 - see above

    return document(read_status(connection))


def _splitting(connection: "Connection") -> Part:
    """Queues with what they hold, and sessions, as `sluice split status` has them."""
    from sluice.aws.operator.control_client import ControlClient  # noqa: PLC0415 - boto3 takes longer than all of --help
    from sluice.cli.splitting.tables import plain  # noqa: PLC0415 - see above
    from sluice.splitting.operations import ListQueues, ListSessions  # noqa: PLC0415 - see above

    client = ControlClient.of(connection)
    queues = [
        {
            "queue_id": each.queue_id,
            "source": _held(connection, each.source),
            "main": _held(connection, each.main),
        }
        for each in client.ask(ListQueues())
    ]
    return {"queues": queues, "sessions": [plain(session) for session in client.ask(ListSessions()).sessions]}


def _federation(connection: "Connection") -> Part:
    """Exchanges, links, and routes with what their queue holds and how late they are."""
    from sluice.aws.operator.control_client import FEDERATION, ControlClient  # noqa: PLC0415 - boto3 takes longer than --help
    from sluice.federation.operations import ShowSite  # noqa: PLC0415 - see above

    site = ControlClient.of(connection, FEDERATION).ask(ShowSite())
    lags, unknown = _lags(connection, site.bridges)
    beside = site.address.ingress_url.rsplit("/", 1)[0]
    routes = [_route(connection, bridge, beside=beside) | lags.get(bridge.name, {}) for bridge in site.bridges]
    links = [
        {"name": each.name, "peer": each.peer, "state": each.status.state.value, "error": each.status.last_error}
        for each in site.links
    ]
    return {
        "tag": site.tag,
        "exchanges": site.exchanges,
        "bindings": site.bindings,
        "links": links,
        "routes": routes,
        "lags_unknown": unknown,
    }


def _route(connection: "Connection", bridge: "BridgeView", *, beside: str) -> dict[str, Any]:
    """`queue` is None where the route's messages wait at its peer."""
    told = ("name", "link", "src", "dest", "key", "state", "error", "last_forward_ms")
    reads = bridge.reads if bridge.src_is_local or bridge.served else None
    return {name: getattr(bridge, name) for name in told} | {
        "queue": None if reads is None else {"name": reads, **_held_or_unknown(connection, f"{beside}/{reads}")}
    }


def _lags(connection: "Connection", bridges: Sequence["BridgeView"]) -> tuple[dict[str, dict[str, Any]], str | None]:
    """By route, and why they aren't known: to read metrics is a permission of its own."""
    from sluice.aws.clients import now_ms  # noqa: PLC0415 - boto3 takes longer than all of --help
    from sluice.aws.operator.lags import read_lags  # noqa: PLC0415 - see above
    from sluice.errors import CallFailed  # noqa: PLC0415 - see above

    queues = {bridge.name: bridge.reads for bridge in bridges}
    try:
        lags = read_lags(connection.client("cloudwatch"), queues, now_ms=now_ms(), stage=connection.stage)
    except CallFailed as error:
        return {}, str(error)
    return {route: asdict(lag) for route, lag in lags.items()}, None


def _pipeline(connection: "Connection", *, is_local: bool) -> Part:
    """As `sluice pipeline status`, with what the queue holds."""
    from sluice.aws.operator.deployment import stack_output  # noqa: PLC0415 - boto3 takes longer than all of --help
    from sluice.cli.pipeline.pipelines import STACK, pipeline_of, site_folder  # noqa: PLC0415 - see above
    from sluice.pipeline.operations import ShowPipeline  # noqa: PLC0415 - see above

    folder = site_folder(connection) if is_local else None
    found = pipeline_of(connection, folder=folder, python=None).ask(ShowPipeline())
    return {**plain(found), "queue": _held(connection, stack_output(connection, STACK, "QueueUrl"))}


def _dead_letters(connection: "Connection") -> Part:
    """How many there are of each kind."""
    from sluice.aws.operator.deployment import stack_output  # noqa: PLC0415 - boto3 takes longer than all of --help

    urls: Mapping[str, str] = json.loads(stack_output(connection, OPERATIONS, "DeadLetterUrls"))
    return {told: _held(connection, url) for told, url in urls.items()}


def _held(connection: "Connection", url: str) -> dict[str, Any]:
    from sluice.aws.operator.rendezvous_status import depth_of  # noqa: PLC0415 - boto3 takes longer than all of --help

    return {"url": url, **asdict(depth_of(connection.client("sqs"), url))}


def _held_or_unknown(connection: "Connection", url: str) -> dict[str, Any]:
    """Nothing of a queue that goes by a name of ours, or that isn't there yet."""
    from sluice.errors import CallFailed  # noqa: PLC0415 - boto3 takes longer than all of --help

    try:
        return _held(connection, url)
    except CallFailed:
        return {}


# For people


def show(report: SiteReport) -> None:
    """All of it, part by part."""
    shown: Mapping[str, Callable[[Part], None]] = {
        "rendezvous": _show_rendezvous,
        "splitting": _show_splitting,
        "federation": _show_federation,
        "pipeline": _show_pipeline,
        "dead_letters": _show_dead_letters,
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
    from sluice.cli.splitting.tables import show_sessions  # noqa: PLC0415 - only where there is something to show
    from sluice.codec import convert  # noqa: PLC0415 - see above
    from sluice.splitting.operations import SessionView  # noqa: PLC0415 - see above

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
        _clock(route["last_forward_ms"]),
    )


def _show_pipeline(part: Part) -> None:
    since = f" since {part['since']}" if part["since"] else ""
    show_pairs([("land should be", part["wanted"] + since), ("queue", _words(part["queue"]))])
    if part["runs"]:
        rows = [
            (run["run"], run["job"], run["state"], _clock(run["started_at_ms"]), run["detail"])
            for run in part["runs"][:SHOWN_RUNS]
        ]
        show_table(("run", "job", "state", "started", ""), rows)


def _show_dead_letters(part: Part) -> None:
    show_table(("of", "messages"), [(told, held["visible"] + held["in_flight"]) for told, held in part.items()])


def _words(held: Part) -> str:
    if "visible" not in held:
        return str(held.get("name", ""))
    return f"{held['visible']} waiting, {held['in_flight']} in flight"


def _clock(at_ms: int | None) -> str:
    return "" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
