"""S3 over HTTP for processes beside ours: moto's, without the web framework that its own server needs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from moto.moto_proxy.proxy3 import MotoRequestHandler
from werkzeug.exceptions import HTTPException

POLL_S = 0.02  # how soon it stops
HOST = "http://s3.amazonaws.com"  # how moto knows which service is meant; buckets are in the path


class Handler(BaseHTTPRequestHandler):
    """Passes a request to moto, and its answer back."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            found = MotoRequestHandler(0).parse_request(self.command, HOST, self.path, self.headers, body)
            status, headers, content = found if isinstance(found, tuple) else (200, {}, found)
        except HTTPException as error:
            status, headers, content = error.code or 500, dict(error.get_headers()), error.get_body()
        content = content.encode() if isinstance(content, str) else content
        self.server.requests.append((self.command, self.path, status))  # type: ignore[attr-defined]  # ours, below
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in {"content-length", "transfer-encoding"}:
                self.send_header(name, str(value))
        said = {name.lower(): value for name, value in headers.items()}
        # What is asked by HEAD has its length, and is not sent
        length = said.get("content-length", len(content)) if self.command == "HEAD" else len(content)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815  http.server's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  http.server's name
        """Says nothing."""


class Server(ThreadingHTTPServer):
    """What it was asked is in `requests`: method, path, status."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str, int]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def running() -> Iterator[Server]:
    """An S3 with nothing in it. moto keeps its state in this process, so one at a time."""
    from moto.backends import get_backend  # noqa: PLC0415  moto's own state

    for account in get_backend("s3").values():
        for backend in account.values():
            backend.reset()
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
