"""`make demo`: everything that Sluice does, on an embedded cloud of the demo's own, with its numbers; then all is gone.

Exit code 0 only where every number is what it should be.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from sluice.aws.clients import now_ms
from sluice.cli.progress import Steps, steps
from sluice.demo import federation, pipeline, rendezvous, spark_jobs, splitting, watched
from sluice.errors import SluiceError
from sluice.local.access import SiteAccess
from sluice.local.cloud import BUILD, start
from sluice.local.deployer import Deployer
from sluice.local.jobs import spark_python
from sluice.local.sites import DEFAULT_SITE
from sluice.times import day_of

FOLDER = BUILD / "demo-cloud"
SITES = DEFAULT_SITE, federation.PEER_SITE
STEPS = 19  # that are told once all is deployed
AT_ONCE = 4  # threads: clients of both sites, the way between these, then what arrives
PARAMETERS: dict[str, object] = {
    **rendezvous.PARAMETERS,
    **splitting.PARAMETERS,
    **federation.PARAMETERS,
    **pipeline.PARAMETERS,
    "sluice.federation.queues": [*federation.QUEUES, *pipeline.QUEUES],
    "sluice.rendezvous.keep_state": False,
}
Results: TypeAlias = tuple[
    rendezvous.Rendezvoused, rendezvous.Rendezvoused, splitting.Divided, federation.Federated, pipeline.Reconciled
]
NEXT = """[bold]What to try next[/]
  . .venv/bin/activate
  sluice local up                                       the same, to stay
  sluice rendezvous proxy --local --loopback            be a proxy, in one terminal
  sluice rendezvous offer --local --loopback            be a client, in another
  sluice rendezvous status --local
  sluice console --local                                all of it on one live page, until ctrl-C; in a third terminal
  sluice split run --local --filter 'pipeline:user=^me$' -- env | grep SLUICE
  here=000000000000/eu-central-1 there=000000000000/us-east-1
  sluice local up $here $there                          two sites
  sluice route add $there $here amq.topic 'orders.#'    the one pulls from the other
  sluice route map $there
  sluice binding add $there amq.topic sluice-queue-orders 'orders.#' --create
  sluice publish $here amq.topic orders.new hello
  sluice consume $there sluice-queue-orders --count 1 --wait 20
  sluice local down
  make bench                                            the numbers, measured"""


def main(
    *,
    console: Annotated[
        bool, typer.Option("--console", help="Open the console meanwhile, and leave it until ctrl-C.")
    ] = False,
) -> None:
    """Deploys, uses, reconciles, stops."""
    out = Console()
    started, began = time.monotonic(), day_of(now_ms())
    try:
        with ExitStack() as stack:
            # Ends after the cloud: without that, whatever still waits there fails.
            beside = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
            with steps(1 + STEPS) as progress:
                site, peer, jobs = _deployed(stack, progress)
                endpoint, took_s = site.cloud.endpoint, time.monotonic() - started
                out.print(f"deployed to {site.site} and {peer.site} at {endpoint} in {took_s:.0f} s")
                overview = watched.watched([site, peer])
                if console:
                    stack.enter_context(watched.served(overview))
                    out.print(f"console at {overview.address}", soft_wrap=True)
                with pipeline.joined(site, peer, jobs=jobs, beside=beside, progress=progress) as way:
                    results = _used(way, beside, progress)
                    progress("the console's overview says it all")
                    said = watched.numbers(results[0], results[1], results[-1])
                    compared = watched.compare(overview, said, began=began, day=day_of(now_ms()))
                    counted = way.statistics()
            _tell(out, (site, peer), results, compared, counted)
            if console:
                out.print(f"the console stays at {overview.address} until ctrl-C", soft_wrap=True)
                watched.wait()
                out.print("\nstopping…")
    except (SluiceError, ExceptionGroup) as error:
        out.print(f"[red]{error}")
        sys.exit(1)
    out.print(f"all of it in {time.monotonic() - started:.0f} s; nothing is left running")
    sys.exit(0 if all(each.is_right() for each in (*results, compared)) else 1)


def _deployed(stack: ExitStack, progress: Steps) -> tuple[SiteAccess, SiteAccess, spark_jobs.Jobs]:
    """Start the cloud, which ends with the stack, and deploy to it: both sites, and Spark's jobs, which wait."""
    progress("starting the embedded cloud")
    python = spark_python(None)
    pipeline.prepare()
    cloud = start(FOLDER, ends_with_us=True)
    stack.callback(cloud.stop)
    jobs = stack.enter_context(spark_jobs.held(python, cloud.environment(SITES[1]), pipeline.FOLDER))
    deployer = Deployer(cloud=cloud, context=PARAMETERS, progress=progress, expect=progress.expect)
    cloud = deployer.deploy(*SITES)
    site, peer = (SiteAccess(cloud, each) for each in SITES)
    return site, peer, jobs


def _used(way: pipeline.Joined, beside: Executor, progress: Callable[[str], None]) -> Results:
    """Use all four parts."""
    site, peer = way.source, way.dest
    sizes = {site: rendezvous.LARGE, peer: rendezvous.SMALL}
    progress(f"{sum(size.early for size in sizes.values())} clients come, and no proxy yet")
    early = {at: beside.submit(asyncio.run, rendezvous.early(at, size)) for at, size in sizes.items()}
    way.publish(progress=progress)
    offered, at_peer = (
        asyncio.run(rendezvous.run(at, size, early=early[at].result(), progress=progress)) for at, size in sizes.items()
    )
    # Not before: it takes both processors for a while, and a client has five seconds.
    way.land(progress=progress)
    offers = {str(site.site): offered.offers, str(peer.site): at_peer.offers}
    published = beside.submit(way.published, offers, progress=progress)
    split = splitting.run(site.connection, progress=progress)
    federated = federation.run(site, peer, progress=progress)
    return offered, at_peer, split, federated, way.finish(published.result(), offers, progress=progress)


def _tell(
    out: Console, sites: Sequence[SiteAccess], results: Results, compared: watched.Compared, counted: str
) -> None:
    offered, at_peer, split, federated, joined = results
    _show(out, f"Rendezvous at {sites[0].site}", offered.rows())
    _show(out, f"Rendezvous at {sites[1].site}", at_peer.rows())
    _show(out, "Splitting", split.rows())
    _show(out, "Federation", federated.rows())
    _show(out, "All four joined", joined.rows())
    _show(out, "The console's overview says", compared.rows())
    out.print(f"[bold]Snowflake's statistics, of what was landed[/]\n{counted}", soft_wrap=True)
    out.print(NEXT, soft_wrap=True)


def _show(console: Console, title: str, rows: list[tuple[str, str]]) -> None:
    table = Table(title=title, show_header=False, title_justify="left", title_style="bold")
    table.add_column()
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
