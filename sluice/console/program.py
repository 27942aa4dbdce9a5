"""`sluice console`, from the sites that were named to the browser."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from sluice.cli.output import tell
from sluice.cli.site_names import SiteName
from sluice.console.parts import ACTIONS, QUESTIONS, READERS
from sluice.console.server import Options, Served
from sluice.console.sites import WatchedSite
from sluice.console.watching import WatchedSites


def run(names: Sequence[SiteName], options: Options, *, history: Path | None, browser: bool, as_json: bool) -> None:
    """Serve until ctrl-C. Raises `PortTaken`."""
    del history
    served = open_at(names, options)
    tell({"address": served.address}, f"console at {served.address} until ctrl-C", as_json=as_json)
    if browser:
        webbrowser.open(served.address)
    served.run()


def open_at(names: Sequence[SiteName], options: Options) -> Served:
    """Make the console of these sites, which serves once it runs. Raises `PortTaken`."""
    sites = [WatchedSite(name) for name in names]
    watching = WatchedSites(sites=sites, readers=READERS, questions=QUESTIONS, actions=ACTIONS)
    return Served.at(watching, options)
