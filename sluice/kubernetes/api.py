"""A cluster's API server, as far as it is asked here: objects by their paths, as plain JSON.

Every kind is asked for in the same way, Kubernetes' own and custom resources, and fields that this program doesn't know
come back to the server as they were.
https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from sluice.documents import read_json
from sluice.errors import CallFailed
from sluice.splitting.consumers.controllers import MANAGER
from sluice.splitting.consumers.workloads import Json

CONNECT_S, READ_S = 2.0, 10.0  # of each request: the control function lives for 60 s
PAGE = 500  # objects
MAX_PAGES = 20
OURS = {"fieldManager": MANAGER}
NOT_FOUND, ALREADY_EXISTS = "NotFound", "AlreadyExists"

# Sends one request: method, path with query, body. Gives the status and the answer, empty where it is no object. Raises
# `CallFailed`, whose code names what failed, where no answer came.
Send = Callable[[str, str, Json | None], tuple[int, Json]]


class Api(msgspec.Struct, frozen=True):
    """Asks one API server. All of it raises `CallFailed`, with the server's own reason as its code."""

    send: Send

    def get(self, path: str) -> Json:
        """Read an object."""
        return self._asked("GET", path)

    def list(self, path: str, **query: str) -> Iterator[Json]:
        """Read a collection's objects, page by page, `MAX_PAGES` at most."""
        more = ""
        for _ in range(MAX_PAGES):
            page = self._asked("GET", path, query={"limit": str(PAGE), **query, **({"continue": more} if more else {})})
            yield from page["items"]
            more = page["metadata"].get("continue", "")
            if not more:
                return
        raise CallFailed(f"GET {path}", "TooMany", f"there are more than {MAX_PAGES * PAGE}")

    def create(self, path: str, body: Json) -> Json:
        """Put an object into a collection."""
        return self._asked("POST", path, body, query=OURS)

    def replace(self, path: str, body: Json) -> Json:
        """Let an object be this one, if nobody has changed it since it was read: its `resourceVersion` says so."""
        return self._asked("PUT", path, body, query=OURS)

    def delete(self, path: str) -> None:
        """Delete an object."""
        self._asked("DELETE", path)

    def _asked(
        self, method: str, path: str, body: Json | None = None, *, query: Mapping[str, str] | None = None
    ) -> Json:
        status, answer = self.send(method, f"{path}?{urlencode(query)}" if query else path, body)
        if not 200 <= status < 300:  # noqa: PLR2004 - HTTP's own
            reason = answer.get("reason") or f"HTTP {status}"
            raise CallFailed(f"{method} {path}", reason, answer.get("message") or "")
        return answer


def path_of(group_version: str, namespace: str, plural: str, name: str | None = None) -> str:
    """Write the path of an object or a collection; Kubernetes' first group has no name, only `v1`."""
    root = f"/apis/{group_version}" if "/" in group_version else f"/api/{group_version}"
    path = f"{root}/namespaces/{quote(namespace, safe='')}/{plural}"
    return path if name is None else f"{path}/{quote(name, safe='')}"


def read_answer(text: bytes | str) -> Json:
    """Read an answer's body, which a proxy on the way may have written: what is no object says nothing."""
    try:
        found: Any = read_json(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
