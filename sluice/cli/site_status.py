"""`sluice status`: a whole site on one screen, from what each of its parts says of itself.

A part that isn't deployed says so, one that can't be asked says why; the others are shown all the same.
"""

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sluice.cli.output import SIGNALLED, AsJson, console, plain, show_error, show_pairs, show_table, tell
from sluice.cli.site_names import SiteOptions

if TYPE_CHECKING:  # boto3 takes longer than all of --help
    from sluice.aws.operator.connections import Connection
    from sluice.aws.operator.control_client import ControlClient
    from sluice.aws.operator.deployment import StackView
    from sluice.cli.pipeline.pipelines import AskedPipeline
    from sluice.federation.operations import BridgeView
    from sluice.operations import QueueDepth
    from sluice.rendezvous.operations import RendezvousView

SHOWN_RUNS = 5  # of the pipeline; `sluice pipeline status` has more
OPERATIONS = "SluiceOperations"

WITHIN_S = 15.0  # for each part: longer than a function's cold start and a call that is made again
MIN_WATCH_S = 1.0
Part = Mapping[str, Any]
T = TypeVar("T")


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


def status(
    *,
    site: SiteOptions,
    watch: Annotated[
        float | None, typer.Option(min=MIN_WATCH_S, metavar="SECONDS", help="Show it again so often, until ctrl-C.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the whole site: rendezvous, split queues, federation, the pipeline, dead letters.

    Exit code 1 where a part is there and can't be asked, or hasn't answered in time.
    """
    connection = site.connect()
    try:
        while True:
            report = read(connection, is_local=site.is_local)
            if watch is not None and not as_json:
                console().clear()
            tell(report.document, partial(show, report), as_json=as_json)
            if watch is None:
                raise typer.Exit(1 if report.failed else 0)
            time.sleep(watch)
    except KeyboardInterrupt:
        raise typer.Exit(SIGNALLED + signal.SIGINT) from None


def read(connection: "Connection", *, is_local: bool, within_s: float = WITHIN_S) -> SiteReport:
    """Ask all parts, as `read_site` does."""
    return read_site(AskedSite(connection, is_local=is_local), within_s=within_s)


def read_site(site: "AskedSite", *, within_s: float = WITHIN_S) -> SiteReport:
    """Ask all parts at once, and each for what it has at once; a part has `within_s` to answer.

    Raises `NotUsable` where all fail for one reason, as without credentials.
    """
    from sluice.aws.operator.deployment import NotDeployed, NotUsable  # noqa: PLC0415 - boto3 takes longer than all of --help
    from sluice.errors import SluiceError  # noqa: PLC0415 - see above

    deadline_s = time.monotonic() + within_s
    readers: Mapping[str, Callable[[AskedSite], Part]] = {
        "rendezvous": _rendezvous,
        "splitting": _splitting,
        "federation": _federation,
        "pipeline": _pipeline,
        "dead_letters": _dead_letters,
    }
    begun = {name: begin(partial(reader, site)) for name, reader in readers.items()}
    parts, absent, failed = {}, {}, {}
    for name, part in begun.items():
        try:
            parts[name] = part.result(max(deadline_s - time.monotonic(), 0))
        except NotDeployed as error:
            absent[name] = str(error)
        except SluiceError as error:
            failed[name] = str(error)
        except TimeoutError:
            failed[name] = f"no answer in {within_s:g} s"
    reasons = set(failed.values())
    if len(failed) == len(readers) and len(reasons) == 1:
        raise NotUsable(reasons.pop())
    return SiteReport(region=site.connection.region, parts=parts, absent=absent, failed=failed)


def begin(task: Callable[[], T]) -> "Future[T]":
    """Run a task beside others. Nobody waits for what hasn't ended when the program does."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(task())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


class AskedSite:
    """A site as its parts ask for it: what several of them need is asked for once."""

    def __init__(self, connection: "Connection", *, is_local: bool) -> None:
        self.connection = connection
        self.is_local = is_local
        self._lock = Lock()
        self._asked: dict[str, Future[Any]] = {}

    def outputs(self, stack: str) -> Mapping[str, str]:
        """Give the outputs of a stack, by its name without the stage. Raises `NotDeployed`, what `all_stacks` does."""
        from sluice.aws.operator.deployment import stored_outputs  # noqa: PLC0415 - boto3 takes longer than --help
        from sluice.stages import staged  # noqa: PLC0415 - see above

        name = staged(stack, self.connection.stage)
        found = self.stacks()
        if name in found:
            return found[name].outputs
        stored: Mapping[str, str] = self.once(name, partial(stored_outputs, self.connection, name)).result()
        return stored

    def stacks(self) -> "Mapping[str, StackView]":
        """Give all stacks of the account and region, by their names. Raises what `all_stacks` does."""
        from sluice.aws.operator.deployment import all_stacks  # noqa: PLC0415 - boto3 takes longer than --help

        found: Mapping[str, StackView] = self.once("stacks", partial(all_stacks, self.connection)).result()
        return found

    def pipeline(self) -> "AskedPipeline":
        """Find the pipeline that is asked. Raises `NotUsable`."""
        from sluice.cli.pipeline.pipelines import STACK, pipeline_of  # noqa: PLC0415 - boto3 takes longer than --help

        folder = self.jobs_folder() if self.is_local else None
        return pipeline_of(self.connection, folder=folder, python=None, outputs=self.outputs(STACK))

    def jobs_folder(self) -> Path:
        """Say where the jobs of a site of the embedded cloud keep what they keep."""
        from sluice.cli.pipeline.pipelines import site_folder  # noqa: PLC0415 - boto3 takes longer than --help

        return site_folder(self.connection)

    def client(self, where: tuple[str, str]) -> "ControlClient":
        """Find a function that is asked; `where` are its stack and the output. Raises `NotUsable`."""
        from sluice.aws.operator.control_client import ControlClient  # noqa: PLC0415 - boto3 takes longer than --help
        from sluice.aws.operator.deployment import output  # noqa: PLC0415 - see above

        stack, name = where
        return ControlClient(self.connection, output(self.outputs(stack), stack, name))

    def rendezvous(self) -> "Future[RendezvousView]":
        """Ask the sweeper how the rendezvous stands, and what the queues hold that it may look at."""
        from sluice.aws.operator.control_client import SWEEPER  # noqa: PLC0415 - boto3 takes longer than all of --help
        from sluice.rendezvous.operations import ShowRendezvous  # noqa: PLC0415 - see above

        return self.once("rendezvous", lambda: self.client(SWEEPER).ask(ShowRendezvous(queues=self._seen_by_sweeper())))

    def _seen_by_sweeper(self) -> tuple[str, ...]:
        from sluice.aws.operator.deployment import STACK  # noqa: PLC0415 - boto3 takes longer than all of --help

        outputs = self.outputs(STACK)
        return tuple(outputs[name] for name in ("OffersQueueUrl", "DeadLettersUrl") if name in outputs)

    def depth(self, url: str) -> "Future[QueueDepth]":
        """Ask what a queue holds."""
        return self.once(url, partial(self.depth_now, url))

    def depth_now(self, url: str) -> "QueueDepth":
        """Say what a queue holds: by those who look at it anyway, or SQS. Raises `CallFailed`."""
        from sluice.aws.queues import depth_of  # noqa: PLC0415 - boto3 takes longer than --help
        from sluice.errors import SluiceError  # noqa: PLC0415 - see above

        with suppress(SluiceError):
            if url in self._seen_by_sweeper():
                return self.rendezvous().result().held[url]
        return depth_of(self.connection.client("sqs"), url)

    def lags(self, queues: Mapping[str, str | None]) -> Mapping[str, Mapping[str, Any]]:
        """Say by route how late it is; `queues` has the queue that each reads. Raises `CallFailed`."""
        from sluice.aws.clients import now_ms  # noqa: PLC0415 - boto3 takes longer than all of --help
        from sluice.aws.operator.lags import read_lags  # noqa: PLC0415 - see above

        found = read_lags(self.connection.client("cloudwatch"), queues, now_ms=now_ms(), stage=self.connection.stage)
        return {route: asdict(lag) for route, lag in found.items()}

    def held(self, urls: Iterable[str]) -> list[dict[str, Any]]:
        """Say of each queue what it holds. Raises `CallFailed`."""
        asked = [(url, self.depth(url)) for url in urls]
        return [{"url": url, **plain(depth.result())} for url, depth in asked]

    def once(self, what: str, task: Callable[[], T]) -> "Future[T]":
        """Begin a task under this name, or give the one that has begun."""
        with self._lock:
            if what not in self._asked:
                self._asked[what] = begin(task)
            return self._asked[what]


# What each part says


def _rendezvous(site: AskedSite) -> Part:
    from sluice.aws.operator.deployment import STACK, read_deployment  # noqa: PLC0415 - boto3 takes longer than --help
    from sluice.aws.operator.rendezvous_status import status_of  # noqa: PLC0415 - see above
    from sluice.cli.rendezvous.status import document  # noqa: PLC0415 - see above

    deployment = read_deployment(site.connection, site.outputs(STACK))
    return document(status_of(site.rendezvous().result(), deployment, region=site.connection.region))


def _splitting(site: AskedSite) -> Part:
    """Queues with what they hold, and sessions, as `sluice split status` has them."""
    from sluice.aws.operator.control_client import SPLITTING  # noqa: PLC0415 - boto3 takes longer than all of --help
    from sluice.cli.splitting.tables import plain  # noqa: PLC0415 - see above
    from sluice.splitting.operations import ShowSplitting  # noqa: PLC0415 - see above

    found = site.client(SPLITTING).ask(ShowSplitting())
    held = {
        each["url"]: each for each in site.held(url for queue in found.queues for url in (queue.source, queue.main))
    }
    queues = [
        {"queue_id": each.queue_id, "source": held[each.source], "main": held[each.main]} for each in found.queues
    ]
    return {"queues": queues, "sessions": [plain(session) for session in found.sessions]}


def _federation(site: AskedSite) -> Part:
    """Exchanges, links, and routes with what their queue holds and how late they are."""
    from sluice.aws.operator.control_client import FEDERATION  # noqa: PLC0415 - boto3 takes longer than all of --help
    from sluice.federation.operations import ShowSite  # noqa: PLC0415 - see above

    found = site.client(FEDERATION).ask(ShowSite())
    beside = found.address.ingress_url.rsplit("/", 1)[0]
    for bridge in found.bridges:
        if (name := _read_here(bridge)) is not None:
            site.depth(f"{beside}/{name}")
    lags, unknown = _lags(site, found.bridges)
    routes = [_route(site, bridge, beside=beside) | dict(lags.get(bridge.name, {})) for bridge in found.bridges]
    links = [
        {"name": each.name, "peer": each.peer, "state": each.status.state.value, "error": each.status.last_error}
        for each in found.links
    ]
    return {
        "tag": found.tag,
        "exchanges": found.exchanges,
        "bindings": found.bindings,
        "links": links,
        "routes": routes,
        "lags_unknown": unknown,
    }


def _read_here(bridge: "BridgeView") -> str | None:
    """Name the queue that a route reads here; None where its messages wait at its peer."""
    return bridge.reads if bridge.src_is_local or bridge.served else None


def _route(site: AskedSite, bridge: "BridgeView", *, beside: str) -> dict[str, Any]:
    """`queue` is None where the route's messages wait at its peer; of one that isn't there it is the name alone."""
    from sluice.errors import CallFailed  # noqa: PLC0415 - boto3 takes longer than all of --help

    told = ("name", "link", "src", "dest", "key", "state", "error", "last_forward_ms")
    reads, held = _read_here(bridge), dict[str, Any]()
    if reads is not None:
        with suppress(CallFailed):
            [held] = site.held([f"{beside}/{reads}"])
    queue = None if reads is None else {"name": reads, **held}
    return {name: getattr(bridge, name) for name in told} | {"queue": queue}


def _lags(site: AskedSite, bridges: Sequence["BridgeView"]) -> tuple[Mapping[str, Mapping[str, Any]], str | None]:
    """By route, and why they aren't known: to read metrics is a permission of its own."""
    from sluice.errors import CallFailed  # noqa: PLC0415 - boto3 takes longer than all of --help

    try:
        return site.lags({bridge.name: bridge.reads for bridge in bridges}), None
    except CallFailed as error:
        return {}, str(error)


def _pipeline(site: AskedSite) -> Part:
    """As `sluice pipeline status`, with what the queue holds."""
    from sluice.aws.operator.deployment import output  # noqa: PLC0415 - boto3 takes longer than all of --help
    from sluice.cli.pipeline.pipelines import STACK  # noqa: PLC0415 - see above
    from sluice.pipeline.operations import ShowPipeline  # noqa: PLC0415 - see above

    url = output(site.outputs(STACK), STACK, "QueueUrl")
    site.depth(url)
    found = site.pipeline().ask(ShowPipeline())
    [queue] = site.held([url])
    return {**plain(found), "queue": queue}


def _dead_letters(site: AskedSite) -> Part:
    """How many there are of each kind."""
    from sluice.aws.operator.deployment import output  # noqa: PLC0415 - boto3 takes longer than all of --help

    urls: Mapping[str, str] = json.loads(output(site.outputs(OPERATIONS), OPERATIONS, "DeadLetterUrls"))
    return dict(zip(urls, site.held(urls.values()), strict=True))


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
