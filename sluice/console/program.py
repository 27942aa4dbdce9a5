"""Runs `sluice console`: serves the pages and opens them in a browser."""

import atexit
import shutil
import threading
import webbrowser
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from tempfile import mkdtemp

from sluice.console.server import ConsoleServer, Options
from sluice.console.sites import WatchedSite
from sluice.console.watching import ACTIONS, QUESTIONS, READERS, WatchedSites
from sluice.operator.site_names import SiteName

OPENED_WITHIN_S = 30.0


def run(names: Sequence[SiteName], options: Options, *, browser: bool, tell: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; before, `tell` is called with the console's address. Raises `PortTaken`."""
    sites = list(map(WatchedSite, names))
    served = ConsoleServer.listen(
        WatchedSites(sites=sites, readers=READERS, questions=QUESTIONS, actions=ACTIONS), options
    )
    tell(served.address)
    if browser:
        open_in_browser(served.address)
    served.run()


def open_in_browser(address: str) -> None:
    """Open the address in a graphical browser; a text browser would take over this terminal.

    Other users of the machine see programs' arguments, so the browser gets a private file that redirects.
    """
    try:
        opener = webbrowser.get()
    except webbrowser.Error:
        return
    if type(opener) is webbrowser.GenericBrowser:
        return
    folder = Path(mkdtemp(prefix="sluice-console-"))  # readable only by this user
    page = folder / "open.html"
    page.write_text(f'<meta http-equiv="refresh" content="0;url={escape(address)}">')
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    opener.open(page.as_uri())
    gone = threading.Timer(OPENED_WITHIN_S, shutil.rmtree, [folder], {"ignore_errors": True})
    gone.daemon = True
    gone.start()
