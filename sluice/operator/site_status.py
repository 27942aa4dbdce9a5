"""A whole site, from what each of its parts says of itself.

A part that isn't deployed says so, one that can't be asked says why; the others are read all the same.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any, TypeVar

from sluice.aws.clients import now_ms
from sluice.aws.connections import Connection
from sluice.aws.deployment import (
    STACK,
    NotDeployed,
    NotUsable,
    StackView,
    all_stacks,
    output,
    read_deployment,
    stored_outputs,
)
from sluice.aws.queues import depth_of
from sluice.codec import plain
from sluice.errors import CallFailed, SluiceError
from sluice.federation.operations import BridgeView, ShowSite
from sluice.operations import QueueDepth
from sluice.operator.dead_letters import OPERATIONS, URLS
from sluice.operator.functions import FEDERATION, SPLITTING, SWEEPER, ControlClient
from sluice.operator.metrics import read_lags
from sluice.operator.pipelines import STACK as PIPELINE_STACK
from sluice.operator.pipelines import AskedPipeline, pipeline_of, site_folder
from sluice.operator.rendezvous_status import document, status_of
from sluice.pipeline.operations import ShowPipeline
from sluice.rendezvous.operations import RendezvousView, ShowRendezvous
from sluice.splitting.operations import ShowSplitting
from sluice.stages import staged

WITHIN_S = 15.0  # for each part: longer than a function's cold start and a call that is made again
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


def read_site(site: "AskedSite", *, within_s: float = WITHIN_S) -> SiteReport:
    """Ask all parts at once, and each for what it has at once; a part has `within_s` to answer.

    Raises `NotUsable` where all fail for one reason, as without credentials.
    """
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
    future.set_running_or_notify_cancel()  # whoever gives up waiting for it doesn't end it

    def run() -> None:
        try:
            future.set_result(task())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


class AskedSite:
    """A site as its parts ask for it: what several of them need is asked for once."""

    def __init__(self, connection: Connection, *, is_local: bool) -> None:
        self.connection = connection
        self.is_local = is_local
        self._lock = Lock()
        self._asked: dict[str, Future[Any]] = {}

    def outputs(self, stack: str) -> Mapping[str, str]:
        """Give the outputs of a stack, by its name without the stage. Raises `NotDeployed`, what `all_stacks` does."""
        name = staged(stack, self.connection.stage)
        found = self.stacks()
        if name in found:
            return found[name].outputs
        stored: Mapping[str, str] = self.once(name, partial(stored_outputs, self.connection, name)).result()
        return stored

    def stacks(self) -> Mapping[str, StackView]:
        """Give all stacks of the account and region, by their names. Raises what `all_stacks` does."""
        found: Mapping[str, StackView] = self.once("stacks", partial(all_stacks, self.connection)).result()
        return found

    def pipeline(self) -> AskedPipeline:
        """Find the pipeline that is asked. Raises `NotUsable`."""
        folder = self.jobs_folder() if self.is_local else None
        return pipeline_of(self.connection, folder=folder, python=None, outputs=self.outputs(PIPELINE_STACK))

    def jobs_folder(self) -> Path:
        """Say where the jobs of a site of the embedded cloud keep what they keep."""
        return site_folder(self.connection)

    def client(self, where: tuple[str, str]) -> ControlClient:
        """Find a function that is asked; `where` are its stack and the output. Raises `NotUsable`."""
        stack, name = where
        return ControlClient(self.connection, output(self.outputs(stack), stack, name))

    def rendezvous(self) -> Future[RendezvousView]:
        """Ask the sweeper how the rendezvous stands, and what the queues hold that it may look at."""
        return self.once("rendezvous", lambda: self.client(SWEEPER).ask(ShowRendezvous(queues=self._seen_by_sweeper())))

    def _seen_by_sweeper(self) -> tuple[str, ...]:
        outputs = self.outputs(STACK)
        return tuple(outputs[name] for name in ("OffersQueueUrl", "DeadLettersUrl") if name in outputs)

    def depth(self, url: str) -> Future[QueueDepth]:
        """Ask what a queue holds."""
        return self.once(url, partial(self.depth_now, url))

    def depth_now(self, url: str) -> QueueDepth:
        """Say what a queue holds: by those who look at it anyway, or SQS. Raises `CallFailed`."""
        with suppress(SluiceError):
            if url in self._seen_by_sweeper():
                return self.rendezvous().result().held[url]
        return depth_of(self.connection.client("sqs"), url)

    def lags(self, queues: Mapping[str, str | None]) -> Mapping[str, Mapping[str, Any]]:
        """Say by route how late it is; `queues` has the queue that each reads. Raises `CallFailed`."""
        found = read_lags(self.connection.client("cloudwatch"), queues, now_ms=now_ms(), stage=self.connection.stage)
        return {route: asdict(lag) for route, lag in found.items()}

    def held(self, urls: Iterable[str]) -> list[dict[str, Any]]:
        """Say of each queue what it holds. Raises `CallFailed`."""
        asked = [(url, self.depth(url)) for url in urls]
        return [{"url": url, **plain(depth.result())} for url, depth in asked]

    def held_by(self, bridge: BridgeView, *, ingress_url: str) -> dict[str, Any] | None:
        """Say what the queue holds that a route reads here: None where its messages wait at its peer.

        Of a queue that isn't there it is the name alone.
        """
        url = _read_here(bridge, ingress_url)
        if url is None:
            return None
        with suppress(CallFailed):
            [held] = self.held([url])
            return {"name": bridge.reads, **held}
        return {"name": bridge.reads}

    def once(self, what: str, task: Callable[[], T]) -> "Future[T]":
        """Begin a task under this name, or give the one that has begun."""
        with self._lock:
            if what not in self._asked:
                self._asked[what] = begin(task)
            return self._asked[what]


# What each part says


def _rendezvous(site: AskedSite) -> Part:
    deployment = read_deployment(site.connection, site.outputs(STACK))
    return document(status_of(site.rendezvous().result(), deployment, region=site.connection.region))


def _splitting(site: AskedSite) -> Part:
    """Queues with what they hold, and sessions, as `sluice split status` has them."""
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
    found = site.client(FEDERATION).ask(ShowSite())
    ingress_url = found.address.ingress_url
    for bridge in found.bridges:
        if (url := _read_here(bridge, ingress_url)) is not None:
            site.depth(url)
    lags, unknown = _lags(site, found.bridges)
    told = ("name", "link", "src", "dest", "key", "state", "error", "last_forward_ms")
    routes = [
        {name: getattr(bridge, name) for name in told}
        | {"queue": site.held_by(bridge, ingress_url=ingress_url), **lags.get(bridge.name, {})}
        for bridge in found.bridges
    ]
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


def _read_here(bridge: BridgeView, ingress_url: str) -> str | None:
    """Give the URL of the queue that a route reads here; None where its messages wait at its peer."""
    is_here = bridge.reads is not None and (bridge.src_is_local or bridge.served)
    return f"{ingress_url.rsplit('/', 1)[0]}/{bridge.reads}" if is_here else None


def _lags(site: AskedSite, bridges: Sequence[BridgeView]) -> tuple[Mapping[str, Mapping[str, Any]], str | None]:
    """By route, and why they aren't known: to read metrics is a permission of its own."""
    try:
        return site.lags({bridge.name: bridge.reads for bridge in bridges}), None
    except CallFailed as error:
        return {}, str(error)


def _pipeline(site: AskedSite) -> Part:
    """As `sluice pipeline status`, with what the queue holds."""
    url = output(site.outputs(PIPELINE_STACK), PIPELINE_STACK, "QueueUrl")
    site.depth(url)
    found = site.pipeline().ask(ShowPipeline())
    [queue] = site.held([url])
    return {**plain(found), "queue": queue}


def _dead_letters(site: AskedSite) -> Part:
    """How many there are of each kind."""
    urls: Mapping[str, str] = json.loads(output(site.outputs(OPERATIONS), OPERATIONS, URLS))
    return dict(zip(urls, site.held(urls.values()), strict=True))
