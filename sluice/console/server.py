"""The console's HTTP: its files, the stream of readings, questions and actions. Who gets in is `security`'s."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from sluice.console.events import EVERY_S, MAX_TOPICS, Feeds, json_of
from sluice.console.requests import Topic, form_of
from sluice.console.security import Door, Guarded, new_token
from sluice.console.sites import Document
from sluice.console.watching import WatchedSites
from sluice.errors import BadConfiguration, BadRequest, Malformed, SluiceError
from sluice.local.cloud import LOOPBACK
from sluice.operator.site_status import begin

STATIC = Path(__file__).with_name("static")
MAX_BODY = 4 * 1024 * 1024  # bytes of a question: a message has one MiB, and JSON may spell a character by six
ENDS_WITHIN_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the console is served. Port 0 is any that is free."""

    allow_actions: bool = False
    port: int = 0
    every_s: float = EVERY_S


class PortTaken(BadConfiguration):
    """Somebody else listens there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """What is served, once for all pages."""

    watching: WatchedSites
    options: Options
    feeds: Feeds

    @classmethod
    def of(cls, watching: WatchedSites, options: Options) -> "Console":
        """Make it. Nobody is asked for anything yet."""
        return cls(watching=watching, options=options, feeds=Feeds(read=watching.read, every_s=options.every_s))

    def app(self) -> ASGIApp:
        """Make the app, below its token."""
        return Starlette(
            routes=[
                Route("/", self.page),
                Route("/watched", self.watched),
                Route("/events", self.events),
                Route("/questions/{name}", self.question, methods=["POST"]),
                Route("/actions/{name}", self.action, methods=["POST"]),
                Mount("/", StaticFiles(directory=STATIC)),
            ]
        )

    async def page(self, _: Request) -> Response:
        """Give the one document; which page it shows is said after the `#`."""
        return FileResponse(STATIC / "index.html")

    async def watched(self, _: Request) -> Response:
        """Say which sites there are, and whether anything may be done."""
        return _written(json_of({"sites": self.watching.labels, "actions": self.options.allow_actions}))

    async def events(self, request: Request) -> Response:
        """Stream readings of the topics that are asked for."""
        asked = request.query_params.getlist("topic")
        if not asked or len(asked) > MAX_TOPICS:
            return _refused(f"from 1 to {MAX_TOPICS} topics", HTTPStatus.BAD_REQUEST)
        try:
            topics = [Topic.parse(each) for each in asked]
        except Malformed as error:
            return _refused(str(error), HTTPStatus.BAD_REQUEST)
        return StreamingResponse(self.feeds.follow(topics), media_type="text/event-stream")

    async def question(self, request: Request) -> Response:
        """Answer what changes nothing."""
        return await self._done(request, self.watching.ask)

    async def action(self, request: Request) -> Response:
        """Do what a command does, where that is allowed."""
        if not self.options.allow_actions:
            return _refused("read-only: start it with --allow-actions", HTTPStatus.FORBIDDEN)
        return await self._done(request, self.watching.act)

    async def _done(self, request: Request, what: Callable[[str, int, Mapping[str, Any]], Document]) -> Response:
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    return _refused(f"more than {MAX_BODY} bytes", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            form = form_of(bytes(body))
        except (ClientDisconnect, BadRequest) as error:  # nobody hears that a page that has gone is refused
            return _refused(str(error), HTTPStatus.BAD_REQUEST)

        def answered() -> str:
            return json_of(what(request.path_params["name"], form.site, form.fields))

        try:
            found = await asyncio.wrap_future(begin(answered))
        except SluiceError as error:
            return _refused(str(error), HTTPStatus.UNPROCESSABLE_ENTITY)
        except asyncio.CancelledError:  # uvicorn's, as it ends: raised again it would be told of as an error
            return _refused("the console has ended", HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception as error:  # noqa: BLE001 - our own fault: the page says so, and goes on
            return _refused(f"{type(error).__name__}: {error}", HTTPStatus.INTERNAL_SERVER_ERROR)
        return _written(found)


def _written(text: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(text, status_code=status, media_type="application/json")


def _refused(text: str, status: HTTPStatus) -> Response:
    return _written(json_of({"error": text}), status)


class Server(uvicorn.Server):
    """One that ends the streams of pages as it ends: cut off, each would be told of as an error."""

    def __init__(self, config: uvicorn.Config, feeds: Feeds) -> None:
        super().__init__(config)
        self._feeds = feeds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End streams, then all else."""
        self._feeds.end()
        await super().shutdown(sockets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A console that has its port, and serves once it is `run`."""

    console: Console
    door: Door
    listening: socket.socket
    server: Server

    @classmethod
    def at(cls, watching: WatchedSites, options: Options) -> "Served":
        """Take the port, on loopback alone. Raises `PortTaken`."""
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((LOOPBACK, options.port))
            listening.listen()  # who opens the address before it is served waits for that
        except OSError as error:
            listening.close()
            raise PortTaken(f"port {options.port}: {error.strerror}") from error
        console = Console.of(watching, options)
        door = Door(token=new_token(), port=listening.getsockname()[1])
        config = uvicorn.Config(
            Guarded(console.app(), door),
            http="h11",
            ws="none",
            lifespan="off",
            access_log=False,  # it would have the token
            log_level="warning",
            server_header=False,
            proxy_headers=False,  # nothing stands between
            timeout_graceful_shutdown=ENDS_WITHIN_S,
        )
        return cls(console=console, door=door, listening=listening, server=Server(config, console.feeds))

    @property
    def address(self) -> str:
        """What is opened in a browser."""
        return self.door.address

    def run(self) -> None:
        """Serve until ctrl-C, or until somebody says `end`."""
        try:
            self.server.run(sockets=[self.listening])
        finally:
            self.listening.close()

    def end(self) -> None:
        """Have it end, from whatever thread."""
        self.server.should_exit = True
