"""Lambda's Extensions API, as far as an internal extension without events uses it.

An environment's `AWS_LAMBDA_RUNTIME_API` begins with its own token in the path, so one server serves all environments
and knows which one registers.
https://docs.aws.amazon.com/lambda/latest/dg/runtimes-extensions-api.html
"""

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class ExtensionsApi:
    """Serves on a loopback port of its own until the process ends."""

    def __init__(self) -> None:
        registered = self._registered = set[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                token, _, path = self.path[1:].partition("/")
                if path != "2020-01-01/extension/register":
                    self.send_error(HTTPStatus.NOT_FOUND)
                    return
                registered.add(token)
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(HTTPStatus.OK)
                self.send_header("Lambda-Extension-Identifier", token)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                """Hold the request for the next event, which there is none of, until the environment ends."""
                self.connection.recv(1)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self._server.serve_forever, daemon=True).start()

    def address(self, token: str) -> str:
        """Return the value of `AWS_LAMBDA_RUNTIME_API` for the environment with this token."""
        return f"127.0.0.1:{self._server.server_port}/{token}"

    def has_registered(self, token: str) -> bool:
        """Return whether this environment has an extension."""
        return token in self._registered
