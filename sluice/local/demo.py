"""`make demo`: everything that Sluice does, on an embedded cloud of the demo's own, with its numbers; then all is gone.

Exit code 0 only where every number is what it should be.
"""

import asyncio
import sys
import time

import typer
from rich.console import Console
from rich.table import Table

from sluice.errors import SluiceError
from sluice.local import demo_rendezvous, demo_splitting
from sluice.local.access import SiteAccess
from sluice.local.cloud import BUILD, Cloud, start
from sluice.local.deployer import Deployer
from sluice.local.sites import DEFAULT_SITE

FOLDER = BUILD / "demo-cloud"
PARAMETERS: dict[str, object] = {
    **demo_rendezvous.PARAMETERS,
    **demo_splitting.PARAMETERS,
    "sluice.rendezvous.keep_state": False,
}
NEXT = """[bold]What to try next[/]
  . .venv/bin/activate
  sluice local up                                       the same, to stay
  sluice rendezvous proxy --local --loopback            be a proxy, in one terminal
  sluice rendezvous offer --local --loopback            be a client, in another
  sluice rendezvous status --local
  sluice split run --local --filter 'pipeline:user=^me$' -- env | grep SLUICE
  sluice local down
  make bench                                            the numbers, measured"""


def main() -> None:
    """Deploys, uses, reconciles, stops."""
    console = Console()
    started = time.monotonic()
    cloud: Cloud | None = None
    try:
        with console.status("starting the embedded cloud") as status:
            cloud = start(FOLDER, ends_with_us=True)
            status_of = status.update
            cloud = Deployer(cloud=cloud, context=PARAMETERS, progress=status_of).deploy(DEFAULT_SITE)
            console.print(f"deployed to {DEFAULT_SITE} at {cloud.endpoint} in {time.monotonic() - started:.0f} s")
            site = SiteAccess(cloud, DEFAULT_SITE)
            rendezvous = asyncio.run(demo_rendezvous.run(site, progress=status_of))
            splitting = asyncio.run(demo_splitting.run(site, progress=status_of))
    except (SluiceError, ExceptionGroup) as error:
        console.print(f"[red]{error}")
        sys.exit(1)
    finally:
        if cloud:
            cloud.stop()
    _show(console, "Rendezvous", rendezvous.rows())
    _show(console, "Splitting", splitting.rows())
    console.print(NEXT)
    console.print(f"all of it in {time.monotonic() - started:.0f} s; nothing is left running")
    sys.exit(0 if rendezvous.is_right() and splitting.is_right() else 1)


def _show(console: Console, title: str, rows: list[tuple[str, str]]) -> None:
    table = Table(title=title, show_header=False, title_justify="left", title_style="bold")
    table.add_column()
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
