"""A browser to look at the console with: headless Chromium from npm, unpacked by `make build/chromium/ready`."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from playwright.sync_api import Browser, Page, expect, sync_playwright

from sluice.building.project import PROJECT
from sluice.console.server import ConsoleServer, ServerOptions
from sluice.console.watching import WatchedSites

CHROMIUM = PROJECT.build / "chromium" / "unpacked" / "chromium"
FLAGS = [
    "--no-sandbox",  # of root's, as CI may be
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WITHIN_MS = 30_000  # other suites may have the processors


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """Runs the browser. While it does, this thread has an event loop: `asyncio.run` doesn't go beside it."""
    assert CHROMIUM.exists(), "there is no browser: make build/chromium/ready"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def serving(watching: WatchedSites, *, allow_actions: bool = False, every_s: float = 0.1) -> Iterator[ConsoleServer]:
    """Serves a console in a thread of its own."""
    served = ConsoleServer.listen(watching, ServerOptions(allow_actions=allow_actions, every_s=every_s))
    thread = Thread(target=served.run)
    thread.start()
    try:
        yield served
    finally:
        served.end()
        thread.join()


@contextmanager
def open_page(
    browser: Browser, *, width: int = 1280, height: int = 800, dark: bool = False, may_complain: bool = False
) -> Iterator[Page]:
    """Opens a page of a browser that has seen nothing. What its scripts complain of fails the test, unless they may."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(WITHIN_MS)
    expect.set_options(timeout=WITHIN_MS)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if is_complaint(said.type, said.text) else None)
    try:
        yield page
    finally:
        context.close()
    assert may_complain or not complaints, complaints


def is_complaint(kind: str, text: str) -> bool:
    """Of a script, or of the policy; that a server is gone, or refuses, is the tests' own doing."""
    return kind == "error" and "Failed to load resource" not in text and "ERR_" not in text
