"""`sluice console`, from the sites that were named to the browser."""

import atexit
import shutil
import threading
import webbrowser
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from tempfile import mkdtemp

from sluice.console.server import Options, Served
from sluice.console.sites import WatchedSite
from sluice.console.watching import ACTIONS, QUESTIONS, READERS, WatchedSites
from sluice.operator.site_names import SiteName

OPENED_WITHIN_S = 30.0


def run(names: Sequence[SiteName], options: Options, *, browser: bool, tell: Callable[[str], None]) -> None:
    """Serve until ctrl-C; `tell` is told the address. Raises `PortTaken`."""
    sites = list(map(WatchedSite, names))
    served = Served.at(WatchedSites(sites=sites, readers=READERS, questions=QUESTIONS, actions=ACTIONS), options)
    tell(served.address)
    if browser:
        open_in_browser(served.address)
    served.run()


def open_in_browser(address: str) -> None:
    """Open the address where there is a browser with a window: one in this terminal would take it from us.

    Other users of the machine see what programs are called with: the browser is called with a file that leads there.
    """
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return
    if type(found) is webbrowser.GenericBrowser:
        return
    folder = Path(mkdtemp(prefix="sluice-console-"))  # which is for nobody else
    page = folder / "open.html"
    page.write_text(f'<meta http-equiv="refresh" content="0;url={escape(address)}">')
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    found.open(page.as_uri())
    gone = threading.Timer(OPENED_WITHIN_S, shutil.rmtree, [folder], {"ignore_errors": True})
    gone.daemon = True
    gone.start()
