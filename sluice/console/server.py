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

from sluice.console.events import MAX_TOPICS, READ_INTERVAL_S, TopicFeeds, to_json
from sluice.console.requests import Topic, parse_form
from sluice.console.security import AccessPolicy, GuardedApp, generate_token
from sluice.console.sites import Document, WatchedSite
from sluice.console.watching import ACTIONS, QUESTIONS, READERS, WatchedSites
from sluice.errors import BadConfiguration, BadRequest, Malformed, SluiceError
from sluice.local.origins import LOOPBACK
from sluice.operator.site_names import SiteName
from sluice.operator.site_status import run_in_thread

STATIC = Path(__file__).with_name("static")
MAX_BODY = 1024 * 1024  # A form is at most this large, in bytes; it can list the ids of a thousand dead letters.
SHUTDOWN_TIMEOUT_S = 1
OPENED_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of the console's server. With `port` 0, the system chooses a free port."""

    allow_actions: bool = False
    port: int = 0
    every_s: float = READ_INTERVAL_S


class PortTaken(BadConfiguration):
    """Raised if the console can't listen on its port, for example because the port is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """The console's HTTP handlers, and the event streams that all pages share."""

    watched_sites: WatchedSites
    options: ServerOptions
    topic_feeds: TopicFeeds

    def build_app(self) -> ASGIApp:
        """Build the ASGI app with the routes of all handlers."""
        return Starlette(
            routes=[
                Route("/", self.serve_page),
                Route("/watched", self.list_sites),
                Route("/events", self.stream_events),
                Route("/questions/{name}", self.answer_question, methods=["POST"]),
                Route("/actions/{name}", self.run_action, methods=["POST"]),
                Mount("/", StaticFiles(directory=STATIC)),
            ]
        )

    async def serve_page(self, _: Request) -> Response:
        """Serve the single HTML document; the URL's fragment selects the page."""
        return FileResponse(STATIC / "index.html")

    async def list_sites(self, _: Request) -> Response:
        """Return the watched sites, and whether actions are allowed, as JSON."""
        return _build_json(to_json({"sites": self.watched_sites.site_labels, "actions": self.options.allow_actions}))

    async def stream_events(self, request: Request) -> Response:
        """Stream events with new data of the requested topics."""
        texts = request.query_params.getlist("topic")
        if not texts or len(texts) > MAX_TOPICS:
            return _build_error(f"1 to {MAX_TOPICS} topics are needed", HTTPStatus.BAD_REQUEST)
        try:
            topics = [Topic.parse(text) for text in texts]
        except Malformed as error:
            return _build_error(str(error), HTTPStatus.BAD_REQUEST)
        return StreamingResponse(self.topic_feeds.stream_events(topics), media_type="text/event-stream")

    async def answer_question(self, request: Request) -> Response:
        """Answer a page's question about a site. Questions have no side effects."""
        return await self._handle_form(request, self.watched_sites.ask)

    async def run_action(self, request: Request) -> Response:
        """Run an action that a page requests. Refused unless the console was started with --allow-actions."""
        if not self.options.allow_actions:
            return _build_error("the console is read-only: start it with --allow-actions", HTTPStatus.FORBIDDEN)
        return await self._handle_form(request, self.watched_sites.act)

    async def _handle_form(
        self, request: Request, handle: Callable[[str, int, Mapping[str, Any]], Document]
    ) -> Response:
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    return _build_error(f"more than {MAX_BODY} bytes", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            form = parse_form(bytes(body))
        except (ClientDisconnect, BadRequest) as error:  # If the page has disconnected, the response is lost.
            return _build_error(str(error), HTTPStatus.BAD_REQUEST)

        def run() -> str:
            return to_json(handle(request.path_params["name"], form.site, form.fields))

        try:
            text = await asyncio.wrap_future(run_in_thread(run))
        except SluiceError as error:
            return _build_error(str(error), HTTPStatus.UNPROCESSABLE_ENTITY)
        except asyncio.CancelledError:  # uvicorn is shutting down, and would log this exception as an error.
            return _build_error("the console has ended", HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception as error:  # noqa: BLE001 - a bug: the page shows it and continues
            return _build_error(f"{type(error).__name__}: {error}", HTTPStatus.INTERNAL_SERVER_ERROR)
        return _build_json(text)


def _build_json(text: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(text, status_code=status, media_type="application/json")


def _build_error(text: str, status: HTTPStatus) -> Response:
    return _build_json(to_json({"error": text}), status)


class Server(uvicorn.Server):
    """A uvicorn server that ends event streams before it shuts down. uvicorn would log open streams as errors."""

    def __init__(self, config: uvicorn.Config, topic_feeds: TopicFeeds) -> None:
        super().__init__(config)
        self._feeds = topic_feeds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all event streams, then shut down the server."""
        self._feeds.end_streams()
        await super().shutdown(sockets)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleServer:
    """A console that is bound to its port. `run` starts serving."""

    policy: AccessPolicy
    listening_socket: socket.socket
    server: Server

    @classmethod
    def listen(cls, watching: WatchedSites, options: ServerOptions) -> "ConsoleServer":
        """Bind the port on loopback only. Raises `PortTaken`."""
        listening_socket = socket.socket()
        listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening_socket.bind((LOOPBACK, options.port))
            listening_socket.listen()  # Connections that arrive before `run` is called wait.
        except OSError as error:
            listening_socket.close()
            raise PortTaken(f"port {options.port}: {error.strerror}") from error
        topic_feeds = TopicFeeds(read=watching.read, every_s=options.every_s)
        console = Console(watched_sites=watching, options=options, topic_feeds=topic_feeds)
        policy = AccessPolicy(token=generate_token(), port=listening_socket.getsockname()[1])
        config = uvicorn.Config(
            GuardedApp(console.build_app(), policy),
            http="h11",
            ws="none",
            lifespan="off",
            access_log=False,  # An access log would contain the token.
            log_level="warning",
            server_header=False,
            proxy_headers=False,  # Browsers connect directly, without a proxy.
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        )
        return cls(policy=policy, listening_socket=listening_socket, server=Server(config, topic_feeds))

    @property
    def address(self) -> str:
        """The console's address for the browser, which contains the token."""
        return self.policy.address

    def run(self) -> None:
        """Serve until ctrl-C is pressed or `end` is called."""
        try:
            self.server.run(sockets=[self.listening_socket])
        finally:
            self.listening_socket.close()

    def end(self) -> None:
        """Request that the server ends soon. Thread-safe."""
        self.server.should_exit = True


def run_console(
    names: Sequence[SiteName], options: ServerOptions, *, browser: bool, show_address: Callable[[str], None]
) -> None:
    """Call `show_address` with the console's address, then serve until ctrl-C is pressed. Raises `PortTaken`."""
    sites = list(map(WatchedSite, names))
    watched_sites = WatchedSites(sites=sites, readers=READERS, questions=QUESTIONS, actions=ACTIONS)
    served = ConsoleServer.listen(watched_sites, options)
    show_address(served.address)
    if browser:
        open_in_browser(served.address)
    served.run()


def open_in_browser(address: str) -> None:
    """Open the address in a graphical browser, if there is one. A text browser would take over this terminal.

    Other users of the machine can see programs' arguments, so the browser gets a private file that redirects.
    """
    try:
        opener = webbrowser.get()
    except webbrowser.Error:
        return
    if type(opener) is webbrowser.GenericBrowser:
        return
    folder = Path(mkdtemp(prefix="sluice-console-"))  # Only this user can read the folder.
    page = folder / "open.html"
    page.write_text(f'<meta http-equiv="refresh" content="0;url={escape(address)}">')
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    opener.open(page.as_uri())
    gone = threading.Timer(OPENED_WITHIN_S, shutil.rmtree, [folder], {"ignore_errors": True})
    gone.daemon = True
    gone.start()
