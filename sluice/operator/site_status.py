"""Reads the status of all parts of a site: rendezvous, splitting, federation, pipeline and dead letters.

A part that isn't deployed or can't be read is reported with the reason; the others are read all the same.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
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
    get_output,
    list_stacks,
    read_deployment,
    read_stored_outputs,
)
from sluice.aws.queues import count_messages
from sluice.codec import to_document
from sluice.errors import CallFailed, SluiceError
from sluice.federation.operations import BridgeView, ShowSite
from sluice.operations import QueueDepth
from sluice.operator.dead_letters import OPERATIONS_STACK, URLS_OUTPUT
from sluice.operator.functions import FEDERATION, SPLITTING, SWEEPER, ControlClient
from sluice.operator.metrics import read_lags
from sluice.operator.pipelines import STACK as PIPELINE_STACK
from sluice.operator.pipelines import PipelineClient, connect_pipeline, find_jobs_folder
from sluice.operator.rendezvous_status import build_status, format_status
from sluice.pipeline.operations import ShowPipeline
from sluice.rendezvous.operations import RendezvousView, ShowRendezvous
from sluice.splitting.operations import ShowSplitting
from sluice.stages import add_stage_prefix

PART_TIMEOUT_S = 15.0  # This number of seconds is longer than a function's cold start and a retried call.
Part = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReport:
    """The status of each part of a site. `absent` parts aren't deployed. `failed` parts can't be read."""

    region: str
    parts: Mapping[str, Part]
    absent: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """The report for `--json`. A part without a status is null, with the reason in `absent` or `failed`."""
        names = [*self.parts, *self.absent, *self.failed]
        documents = {name: self.parts.get(name) for name in names}
        return {"region": self.region, **documents, "absent": dict(self.absent), "failed": dict(self.failed)}


def read_site(site: "SiteClient", *, within_s: float = PART_TIMEOUT_S) -> SiteReport:
    """Read the status of all parts of a site concurrently, within `within_s` seconds.

    Raises `NotUsable` if all parts fail for the same reason, such as missing credentials.
    """
    deadline_s = time.monotonic() + within_s
    readers: Mapping[str, Callable[[SiteClient], Part]] = {
        "rendezvous": _read_rendezvous,
        "splitting": _read_splitting,
        "federation": _read_federation,
        "pipeline": _read_pipeline,
        "dead_letters": _read_dead_letters,
    }
    futures = {name: run_in_thread(partial(reader, site)) for name, reader in readers.items()}
    parts, absent, failed = {}, {}, {}
    for name, part in futures.items():
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


def run_in_thread(task: Callable[[], T]) -> "Future[T]":
    """Run a task in a daemon thread, which does not keep the program from exiting."""
    future = Future[T]()
    future.set_running_or_notify_cancel()  # This keeps a cancelled `await` from cancelling the task.

    def run() -> None:
        try:
            future.set_result(task())
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


class SiteClient:
    """Reads the data for a site's status from AWS. Calls that several parts need are made only once."""

    def __init__(self, connection: Connection, *, is_local: bool) -> None:
        self.connection = connection
        self.is_local = is_local
        self._lock = Lock()
        self._futures: dict[str, Future[Any]] = {}

    def read_outputs(self, stack: str) -> Mapping[str, str]:
        """Return the outputs of a stack, named without the stage. Raises `NotDeployed` and `list_stacks`' errors."""
        name = add_stage_prefix(stack, self.connection.stage)
        stacks = self.list_stacks()
        if name in stacks:
            return stacks[name].outputs
        return self.run_once(name, partial(read_stored_outputs, self.connection, name)).result()

    def list_stacks(self) -> Mapping[str, StackView]:
        """Return all stacks of the account and region, by name. Raises `list_stacks`' errors."""
        return self.run_once("stacks", partial(list_stacks, self.connection)).result()

    def connect_pipeline(self) -> PipelineClient:
        """Connect to the site's pipeline, deployed or local. Raises `NotUsable`."""
        folder = self.find_jobs_folder() if self.is_local else None
        return connect_pipeline(self.connection, folder=folder, python=None, outputs=self.read_outputs(PIPELINE_STACK))

    def find_jobs_folder(self) -> Path:
        """Return the data folder of a local site's Spark jobs."""
        return find_jobs_folder(self.connection)

    def find_client(self, where: tuple[str, str]) -> ControlClient:
        """Find a function by a stack and the stack's output with the function's name (`where`). Raises `NotUsable`."""
        stack, name = where
        return ControlClient(self.connection, get_output(self.read_outputs(stack), stack, name))

    def read_rendezvous(self) -> Future[RendezvousView]:
        """Invoke the sweeper function for the rendezvous's status and its queues' depths, and return the future."""
        return self.run_once(
            "rendezvous", lambda: self.find_client(SWEEPER).ask(ShowRendezvous(queues=self._read_sweeper_urls()))
        )

    def _read_sweeper_urls(self) -> tuple[str, ...]:
        outputs = self.read_outputs(STACK)
        return tuple(outputs[name] for name in ("OffersQueueUrl", "DeadLettersUrl") if name in outputs)

    def start_reading_depth(self, url: str) -> Future[QueueDepth]:
        """Start reading a queue's depth (its number of messages), and return the future."""
        return self.run_once(url, partial(self.read_depth, url))

    def read_depth(self, url: str) -> QueueDepth:
        """Read a queue's depth from the sweeper's response if it has the depth, else from SQS. Raises `CallFailed`."""
        with suppress(SluiceError):
            if url in self._read_sweeper_urls():
                return self.read_rendezvous().result().depths[url]
        return count_messages(self.connection.client("sqs"), url)

    def read_lags(self, queues: Mapping[str, str | None]) -> Mapping[str, Mapping[str, Any]]:
        """Read the lags of routes, by route. `queues` has the source queue of each route. Raises `CallFailed`."""
        lags = read_lags(self.connection.client("cloudwatch"), queues, now_ms=now_ms(), stage=self.connection.stage)
        return {route: asdict(lag) for route, lag in lags.items()}

    def read_depths(self, urls: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Read the depths of several queues, by URL. Raises `CallFailed`."""
        depths = {url: self.start_reading_depth(url) for url in urls}
        return {url: {"url": url, **to_document(depth.result())} for url, depth in depths.items()}

    def read_route_queue(self, bridge: BridgeView, *, ingress_url: str) -> dict[str, Any] | None:
        """Read the depth of the queue at this site that a route consumes; None if the route's queue is at its peer.

        If the queue does not exist, only its name is returned.
        """
        url = _find_local_queue_url(bridge, ingress_url)
        if url is None:
            return None
        with suppress(CallFailed):
            return {"name": bridge.reads, **self.read_depths([url])[url]}
        return {"name": bridge.reads}

    def run_once(self, name: str, task: Callable[[], T]) -> "Future[T]":
        """Start a task under a name, and return its future. If the name was used before, return the earlier future."""
        with self._lock:
            if name not in self._futures:
                self._futures[name] = run_in_thread(task)
            return self._futures[name]


def _read_rendezvous(site: SiteClient) -> Part:
    deployment = read_deployment(site.connection, site.read_outputs(STACK))
    return format_status(build_status(site.read_rendezvous().result(), deployment, region=site.connection.region))


def _read_splitting(site: SiteClient) -> Part:
    """Read split queues with their depths, and sessions, as in `sluice split status`."""
    view = site.find_client(SPLITTING).ask(ShowSplitting())
    depths = site.read_depths(url for queue in view.queues for url in (queue.source, queue.main))
    queues = [
        {"queue_id": queue.queue_id, "source": depths[queue.source], "main": depths[queue.main]}
        for queue in view.queues
    ]
    return {"queues": queues, "sessions": [to_document(session) for session in view.sessions]}


def _read_federation(site: SiteClient) -> Part:
    """Read exchanges, links, and routes with their queues' depths and lags."""
    view = site.find_client(FEDERATION).ask(ShowSite())
    ingress_url = view.address.ingress_url
    for bridge in view.bridges:
        if (url := _find_local_queue_url(bridge, ingress_url)) is not None:
            site.start_reading_depth(url)
    lags, unknown = dict[str, Mapping[str, Any]](), None
    try:
        lags |= site.read_lags({bridge.name: bridge.reads for bridge in view.bridges})
    except CallFailed as error:  # The user may lack the permission to read metrics, which is a separate one.
        unknown = str(error)
    fields = ("name", "link", "src", "dest", "key", "state", "error", "last_forward_ms")
    routes = [
        {name: getattr(bridge, name) for name in fields}
        | {"queue": site.read_route_queue(bridge, ingress_url=ingress_url), **lags.get(bridge.name, {})}
        for bridge in view.bridges
    ]
    links = [
        {"name": link.name, "peer": link.peer, "state": link.status.state.value, "error": link.status.last_error}
        for link in view.links
    ]
    return {
        "tag": view.tag,
        "exchanges": view.exchanges,
        "bindings": view.bindings,
        "links": links,
        "routes": routes,
        "refusing_queues": view.refusing or {},
        "lags_unknown": unknown,
    }


def _find_local_queue_url(bridge: BridgeView, ingress_url: str) -> str | None:
    """Return the URL of the queue at this site that a route consumes; None if the route's queue is at its peer."""
    is_here = bridge.reads is not None and (bridge.src_is_local or bridge.served)
    return f"{ingress_url.rsplit('/', 1)[0]}/{bridge.reads}" if is_here else None


def _read_pipeline(site: SiteClient) -> Part:
    """Read the pipeline's status, as in `sluice pipeline status`, with the depth of its queue."""
    url = get_output(site.read_outputs(PIPELINE_STACK), PIPELINE_STACK, "QueueUrl")
    site.start_reading_depth(url)
    view = site.connect_pipeline().ask(ShowPipeline())
    return {**to_document(view), "queue": site.read_depths([url])[url]}


def _read_dead_letters(site: SiteClient) -> Part:
    """Read the depth of each of the site's dead-letter queues."""
    urls: Mapping[str, str] = json.loads(get_output(site.read_outputs(OPERATIONS_STACK), OPERATIONS_STACK, URLS_OUTPUT))
    depths = site.read_depths(urls.values())
    return {name: depths[url] for name, url in urls.items()}
