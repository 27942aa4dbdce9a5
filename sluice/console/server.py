"""The console's HTTP server: static files, event streams, questions and actions. See `security` for access control."""

import asyncio
import atexit
import shutil
import socket
import threading
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from http import HTTPStatus
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from sluice.console.events import MAX_TOPICS, READ_INTERVAL_S, Feeds, to_json
from sluice.console.requests import Topic, parse_form
from sluice.console.security import AccessPolicy, GuardedApp, new_token
from sluice.console.sites import Document, WatchedSite
from sluice.console.watching import ACTIONS, QUESTIONS, READERS, WatchedSites
from sluice.errors import BadConfiguration, BadRequest, Malformed, SluiceError
from sluice.local.origins import LOOPBACK
from sluice.operator.site_names import SiteName
from sluice.operator.site_status import run_in_thread

STATIC = Path(__file__).with_name("static")
MAX_BODY = 1024 * 1024  # size limit of a form, which may select a thousand dead letters by their ids
SHUTDOWN_TIMEOUT_S = 1
OPENED_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the console's server. Port 0 chooses a free port."""

    allow_actions: bool = False
    port: int = 0
    every_s: float = READ_INTERVAL_S


class PortTaken(BadConfiguration):
    """The port is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """The HTTP handlers and feeds, shared by all pages."""

    watched_sites: WatchedSites
    options: Options
    feeds: Feeds

    def app(self) -> ASGIApp:
        """Build the ASGI app."""
        return Starlette(
            routes=[
                Route("/", self.page),
                Route("/watched", self.list_sites),
                Route("/events", self.events),
                Route("/questions/{name}", self.question, methods=["POST"]),
                Route("/actions/{name}", self.action, methods=["POST"]),
                Mount("/", StaticFiles(directory=STATIC)),
            ]
        )

    async def page(self, _: Request) -> Response:
        """Serve the single HTML document; the URL's fragment selects the page."""
        return FileResponse(STATIC / "index.html")

    async def list_sites(self, _: Request) -> Response:
        """List the sites, and whether actions are allowed."""
        return _json_response(to_json({"sites": self.watched_sites.labels, "actions": self.options.allow_actions}))

    async def events(self, request: Request) -> Response:
        """Stream readings of the requested topics."""
        texts = request.query_params.getlist("topic")
        if not texts or len(texts) > MAX_TOPICS:
            return _error_response(f"1 to {MAX_TOPICS} topics are needed", HTTPStatus.BAD_REQUEST)
        try:
            topics = [Topic.parse(text) for text in texts]
        except Malformed as error:
            return _error_response(str(error), HTTPStatus.BAD_REQUEST)
        return StreamingResponse(self.feeds.follow(topics), media_type="text/event-stream")

    async def question(self, request: Request) -> Response:
        """Answer a question, which has no side effects."""
        return await self._run(request, self.watched_sites.ask)

    async def action(self, request: Request) -> Response:
        """Perform an action, if actions are allowed."""
        if not self.options.allow_actions:
            return _error_response("the console is read-only: start it with --allow-actions", HTTPStatus.FORBIDDEN)
        return await self._run(request, self.watched_sites.act)

    async def _run(self, request: Request, handle: Callable[[str, int, Mapping[str, Any]], Document]) -> Response:
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    return _error_response(f"more than {MAX_BODY} bytes", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            form = parse_form(bytes(body))
        except (ClientDisconnect, BadRequest) as error:  # a disconnected page does not see the refusal
            return _error_response(str(error), HTTPStatus.BAD_REQUEST)

        def run() -> str:
            return to_json(handle(request.path_params["name"], form.site, form.fields))

        try:
            text = await asyncio.wrap_future(run_in_thread(run))
        except SluiceError as error:
            return _error_response(str(error), HTTPStatus.UNPROCESSABLE_ENTITY)
        except asyncio.CancelledError:  # uvicorn is shutting down; raised again, it would be logged as an error
            return _error_response("the console has ended", HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception as error:  # noqa: BLE001 - a bug: the page shows it and continues
            return _error_response(f"{type(error).__name__}: {error}", HTTPStatus.INTERNAL_SERVER_ERROR)
        return _json_response(text)


def _json_response(text: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(text, status_code=status, media_type="application/json")


def _error_response(text: str, status: HTTPStatus) -> Response:
    return _json_response(to_json({"error": text}), status)


class Server(uvicorn.Server):
    """A server that ends pages' streams before it shuts down, as uvicorn would log each open one as an error."""

    def __init__(self, config: uvicorn.Config, feeds: Feeds) -> None:
        super().__init__(config)
        self._feeds = feeds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then shut down."""
        self._feeds.end()
        await super().shutdown(sockets)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleServer:
    """A console bound to its port, which serves after `run` is called."""

    policy: AccessPolicy
    listening: socket.socket
    server: Server

    @classmethod
    def listen(cls, watching: WatchedSites, options: Options) -> "ConsoleServer":
        """Bind the port on loopback only. Raises `PortTaken`."""
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((LOOPBACK, options.port))
            listening.listen()  # requests that arrive before `run` wait
        except OSError as error:
            listening.close()
            raise PortTaken(f"port {options.port}: {error.strerror}") from error
        feeds = Feeds(read=watching.read, every_s=options.every_s)
        console = Console(watched_sites=watching, options=options, feeds=feeds)
        policy = AccessPolicy(token=new_token(), port=listening.getsockname()[1])
        config = uvicorn.Config(
            GuardedApp(console.app(), policy),
            http="h11",
            ws="none",
            lifespan="off",
            access_log=False,  # the log would contain the token
            log_level="warning",
            server_header=False,
            proxy_headers=False,  # browsers connect directly
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        )
        return cls(policy=policy, listening=listening, server=Server(config, feeds))

    @property
    def address(self) -> str:
        """The address for the browser."""
        return self.policy.address

    def run(self) -> None:
        """Serve until Ctrl-C or `end`."""
        try:
            self.server.run(sockets=[self.listening])
        finally:
            self.listening.close()

    def end(self) -> None:
        """Ask the server to end; callable from any thread."""
        self.server.should_exit = True


def run_console(names: Sequence[SiteName], options: Options, *, browser: bool, tell: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; before, `tell` is called with the console's address. Raises `PortTaken`."""
    sites = list(map(WatchedSite, names))
    watched_sites = WatchedSites(sites=sites, readers=READERS, questions=QUESTIONS, actions=ACTIONS)
    served = ConsoleServer.listen(watched_sites, options)
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
