"""Pages of other origins, in a real browser, against every port that a cloud and a console open: all are refused."""

import contextlib
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser

from sluice.local.cloud import Cloud
from sluice.local.origins import LOOPBACK
from tests.browser import chromium, open_page, serving
from tests.deployed import Deployed
from tests.e2e.test_console import watching

EVIL = "evil.example"  # the browser resolves it to loopback, as its owner's name server may answer
LISTENS = "0A"
REFUSALS = {403, 421}
TEXT = {"method": "POST", "mode": "no-cors", "headers": {"Content-Type": "text/plain"}}
FORM = {**TEXT, "headers": {"Content-Type": "application/x-www-form-urlencoded"}}
SIGNED = (
    "AWS4-HMAC-SHA256 Credential=000000000000/20261127/eu-central-1/lambda/aws4_request, "
    "SignedHeaders=host;x-amz-date, Signature=" + "0" * 64
)
FUNCTION = '{"FunctionName": "evil", "Role": "arn:aws:iam::000000000000:role/any", "Code": {"ZipFile": "UEsFBg=="}}'
TRY = """attempts => Promise.all(attempts.map(async ([url, how]) => {
    try { return (await fetch(url, how)).type } catch (error) { return error.name }
}))"""
# A page can do these without `fetch`; each ends when the browser has an answer.
ELEMENTS = """url => Promise.all(['img', 'script', 'iframe'].map(name => new Promise(done => {
    const element = document.createElement(name)
    element.onload = element.onerror = done
    element.src = url
    document.body.append(element)
})))"""
SOCKET = """url => new Promise(done => {
    const socket = new WebSocket(url)
    socket.onopen = () => done('open')
    socket.onerror = () => done('refused')
})"""


class Page(BaseHTTPRequestHandler):
    """The foreign page: its scripts are the test's."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<body>")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(f"--host-resolver-rules=MAP {EVIL} {LOOPBACK}") as running:
        yield running


@pytest.fixture(scope="module")
def foreign_port() -> Iterator[int]:
    server = ThreadingHTTPServer((LOOPBACK, 0), Page)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def ports(deployed: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """Every port that the cloud's processes listen on, once functions have run, and a console's."""
    landed = tmp_path_factory.mktemp("landed")
    with serving(watching(deployed.connection, landed=landed)) as console:
        found = [*listening_ports(deployed.cloud), urlsplit(console.address).port or 0]
        assert urlsplit(deployed.endpoint).port in found
        yield found


def listening_ports(cloud: Cloud) -> list[int]:
    """The ports on which any process of its session listens; all are on loopback."""
    sockets: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(process.name)) == cloud.pid:
                for file in (process / "fd").iterdir():
                    with contextlib.suppress(FileNotFoundError):  # closed in the meantime
                        sockets.add(str(file.readlink()))
    ports = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in sockets:
                address, _, port = fields[1].partition(":")
                assert address == "0100007F", "another than the loopback address"
                ports.append(int(port, 16))
    return ports


def attempts(address: str, function: str) -> list[tuple[str, dict[str, Any]]]:
    """What a page sends to a server: without its scripts' seeing the answer, and in order to see it."""
    unseen: list[tuple[str, dict[str, Any]]] = [
        ("/_ministack/reset", TEXT),
        ("/_ministack/ready", {"mode": "no-cors"}),
        ("/?Action=ListQueues", FORM | {"body": "Action=DeleteQueue"}),
        (function, {"mode": "no-cors"}),
        (function, TEXT | {"body": "{}"}),
        ("/0/2020-01-01/extension/register", TEXT),
    ]
    seen: list[tuple[str, dict[str, Any]]] = [
        ("/_ministack/ready", {}),
        ("/2015-03-31/functions", {"method": "POST", "body": FUNCTION, "headers": {"Authorization": SIGNED}}),
        (function, {"method": "POST", "body": "{}", "headers": {"Content-Type": "application/json"}}),
    ]
    return [(address + path, how) for path, how in unseen + seen]


@pytest.mark.parametrize("host", [EVIL, LOOPBACK])
def test_a_page_of_another_origin_is_refused_by_every_port(
    deployed: Deployed, browser: Browser, ports: list[int], foreign_port: int, host: str
) -> None:
    functions = deployed.connection.client("lambda")
    before = functions.list_functions()["Functions"]
    function = urlsplit(deployed.broker_url).path
    for port in ports:
        with open_page(browser, may_complain=True) as page:
            page.goto(f"http://{host}:{foreign_port}/")
            # What the network gave, also where the browser keeps it from the page, and to its preflights.
            statuses: list[int] = []
            devtools = page.context.new_cdp_session(page)
            devtools.on("Network.responseReceivedExtraInfo", lambda event, to=statuses: to.append(event["statusCode"]))
            devtools.send("Network.enable")
            tried = attempts(f"http://{LOOPBACK}:{port}", function)
            assert set(page.evaluate(TRY, tried)) <= {"opaque", "TypeError"}
            page.evaluate(ELEMENTS, f"http://{LOOPBACK}:{port}{function}")
            assert page.evaluate(SOCKET, f"ws://{LOOPBACK}:{port}/") == "refused"
            assert len(statuses) >= len(tried)
            assert set(statuses) <= REFUSALS
    assert functions.list_functions()["Functions"] == before
    assert deployed.sqs.get_queue_attributes(QueueUrl=deployed.offers_queue_url)


def test_a_name_that_is_pointed_at_loopback_is_refused_by_every_port(
    deployed: Deployed, browser: Browser, ports: list[int]
) -> None:
    """The page's origin is the server's own, so that its scripts could read every answer."""
    function = urlsplit(deployed.broker_url).path
    for port in ports:
        with open_page(browser, may_complain=True) as page:
            opened = page.goto(f"http://{EVIL}:{port}{function}")
            assert opened is not None
            assert opened.status == 421
            statuses = page.evaluate(
                "paths => Promise.all(paths.map(async path => (await fetch(path, {method: 'POST'})).status))",
                ["/", "/_ministack/reset", function],
            )
            assert set(statuses) == {421}
