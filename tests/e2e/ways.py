"""A way to the embedded cloud that can be cut: a port on loopback, passed on byte by byte."""

import contextlib
import socket
import socketserver
import threading
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from sluice.local.origins import LOOPBACK

CHUNK = 65_536


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


@dataclass
class Way:
    """Open from the start. While it is cut, nobody answers at its port."""

    endpoint: str
    port: int = 0
    _server: _Server | None = None
    _open: set[socket.socket] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.mend()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def mend(self) -> None:
        """Open it again at its port; one that is open stays as it is."""
        if self._server is not None:
            return
        server = _Server((LOOPBACK, self.port), self._handler())
        self._server, self.port = server, server.server_address[1]
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def cut(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        way, target = self, urlsplit(self.endpoint)

        class Pass(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection((target.hostname or "", target.port or 80)) as far:
                    way._open |= {self.request, far}
                    back = threading.Thread(target=_pump, args=(far, self.request), daemon=True)
                    back.start()
                    _pump(self.request, far)
                    back.join()
                    way._open -= {self.request, far}

        return Pass


def _pump(source: socket.socket, dest: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(CHUNK):
            dest.sendall(chunk)
    for end in (source, dest):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
