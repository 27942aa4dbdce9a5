"""`make demo`: everything that Sluice does, on an embedded cloud of the demo's own, with its numbers; then all is gone.

Exit code 0 only where every number is what it should be.
"""

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import typer
from rich.console import Console
from rich.table import Table

from sluice.cli.progress import steps
from sluice.demo import federation, pipeline, rendezvous, splitting
from sluice.errors import SluiceError
from sluice.local.access import SiteAccess
from sluice.local.cloud import BUILD, Cloud, start
from sluice.local.deployer import Deployer
from sluice.local.jobs import spark_python
from sluice.local.sites import DEFAULT_SITE

FOLDER = BUILD / "demo-cloud"
SITES = DEFAULT_SITE, federation.PEER_SITE
STEPS = 18  # that are told once all is deployed
PARAMETERS: dict[str, object] = {
    **rendezvous.PARAMETERS,
    **splitting.PARAMETERS,
    **federation.PARAMETERS,
    **pipeline.PARAMETERS,
    "sluice.federation.queues": [*federation.QUEUES, *pipeline.QUEUES],
    "sluice.rendezvous.keep_state": False,
}
NEXT = """[bold]What to try next[/]
  . .venv/bin/activate
  sluice local up                                       the same, to stay
  sluice rendezvous proxy --local --loopback            be a proxy, in one terminal
  sluice rendezvous offer --local --loopback            be a client, in another
  sluice rendezvous status --local
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


def main() -> None:
    """Deploys, uses, reconciles, stops."""
    console = Console()
    started = time.monotonic()
    cloud: Cloud | None = None
    try:
        with steps(1 + STEPS) as progress:
            progress("starting the embedded cloud")
            python = spark_python(None)
            pipeline.prepare()
            cloud = start(FOLDER, ends_with_us=True)
            deployer = Deployer(cloud=cloud, context=PARAMETERS, progress=progress, expect=progress.expect)
            cloud = deployer.deploy(*SITES)
            names = " and ".join(map(str, SITES))
            console.print(f"deployed to {names} at {cloud.endpoint} in {time.monotonic() - started:.0f} s")
            site, peer = (SiteAccess(cloud, each) for each in SITES)
            with pipeline.joined(site, peer, python=python, progress=progress) as way:
                sizes = {site: rendezvous.LARGE, peer: rendezvous.SMALL}
                with ThreadPoolExecutor(len(sizes)) as beside:
                    progress(f"{sum(size.early for size in sizes.values())} clients come, and no proxy yet")
                    early = {at: beside.submit(asyncio.run, rendezvous.early(at, size)) for at, size in sizes.items()}
                    way.publish(progress=progress)
                offered, at_peer = (
                    asyncio.run(rendezvous.run(at, size, early=early[at].result(), progress=progress))
                    for at, size in sizes.items()
                )
                # Not before: it takes both processors for half a minute, and a client has five seconds.
                way.land(progress=progress)
                split = splitting.run(site.connection, progress=progress)
                federated = federation.run(site, peer, progress=progress)
                offers = {str(site.site): offered.offers, str(peer.site): at_peer.offers}
                joined = way.finish(offers, progress=progress)
    except (SluiceError, ExceptionGroup) as error:
        console.print(f"[red]{error}")
        sys.exit(1)
    finally:
        if cloud:
            cloud.stop()
    _show(console, f"Rendezvous at {site.site}", offered.rows())
    _show(console, f"Rendezvous at {peer.site}", at_peer.rows())
    _show(console, "Splitting", split.rows())
    _show(console, "Federation", federated.rows())
    _show(console, "All four joined", joined.rows())
    console.print(f"[bold]Snowflake's statistics, of what was landed[/]\n{joined.statistics}", soft_wrap=True)
    console.print(NEXT, soft_wrap=True)
    console.print(f"all of it in {time.monotonic() - started:.0f} s; nothing is left running")
    results = offered, at_peer, split, federated, joined
    sys.exit(0 if all(each.is_right() for each in results) else 1)


def _show(console: Console, title: str, rows: list[tuple[str, str]]) -> None:
    table = Table(title=title, show_header=False, title_justify="left", title_style="bold")
    table.add_column()
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
