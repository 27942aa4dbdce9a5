"""A minimal client of a Kubernetes cluster's API server, which addresses objects by path and keeps them as plain JSON.

Built-in kinds and custom resources are treated alike, and fields that this program doesn't know are sent back
unchanged. https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from sluice.documents import read_json
from sluice.errors import CallFailed
from sluice.splitting.consumers.controllers import MANAGER
from sluice.splitting.consumers.workloads import Json

CONNECT_S, READ_S = 2.0, 10.0  # These are the time-outs of one request; the control function may run for 60 s.
PAGE = 500  # A request lists at most this many objects.
MAX_PAGES = 20
FIELD_MANAGER = {"fieldManager": MANAGER}
NOT_FOUND, ALREADY_EXISTS = "NotFound", "AlreadyExists"

# Sends one request, given its method, its path with query, and its body. Returns the HTTP status and the response, or
# {} if it isn't a JSON object. If no response arrives, raises `CallFailed` with the error's name as its code.
Send = Callable[[str, str, Json | None], tuple[int, Json]]


class Api(msgspec.Struct, frozen=True):
    """A client of one API server. All methods raise `CallFailed`, whose code is the server's reason."""

    send: Send

    def get_object(self, path: str) -> Json:
        """Fetch the object at this path."""
        return self._send_request("GET", path)

    def find_object(self, path: str) -> Json | None:
        """Fetch the object at this path. Returns None if it doesn't exist."""
        try:
            return self.get_object(path)
        except CallFailed as error:
            if error.code != NOT_FOUND:
                raise
            return None

    def list_objects(self, path: str, **query: str) -> Iterator[Json]:
        """Yield a collection's objects, page by page. Raises `CallFailed` if there are more than `MAX_PAGES` pages."""
        more = ""
        for _ in range(MAX_PAGES):
            page = self._send_request(
                "GET", path, query={"limit": str(PAGE), **query, **({"continue": more} if more else {})}
            )
            yield from page["items"]
            more = page["metadata"].get("continue", "")
            if not more:
                return
        raise CallFailed(f"GET {path}", "TooMany", f"there are more than {MAX_PAGES * PAGE}")

    def create_object(self, path: str, body: Json) -> Json:
        """Create an object in a collection."""
        return self._send_request("POST", path, body, query=FIELD_MANAGER)

    def replace_object(self, path: str, body: Json) -> Json:
        """Replace an object, unless it was changed since it was read: `resourceVersion` shows that."""
        return self._send_request("PUT", path, body, query=FIELD_MANAGER)

    def delete_object(self, path: str) -> None:
        """Delete an object, if it exists."""
        try:
            self._send_request("DELETE", path)
        except CallFailed as error:
            if error.code != NOT_FOUND:
                raise

    def _send_request(
        self, method: str, path: str, body: Json | None = None, *, query: Mapping[str, str] | None = None
    ) -> Json:
        status, answer = self.send(method, f"{path}?{urlencode(query)}" if query else path, body)
        if not 200 <= status < 300:  # noqa: PLR2004 - HTTP's own
            reason = answer.get("reason") or f"HTTP {status}"
            raise CallFailed(f"{method} {path}", reason, answer.get("message") or "")
        return answer


def api_path(group_version: str, namespace: str, plural: str, name: str | None = None) -> str:
    """Return the path of an object, or of a collection if `name` is None. The core group is written `v1`."""
    root = f"/apis/{group_version}" if "/" in group_version else f"/api/{group_version}"
    path = f"{root}/namespaces/{quote(namespace, safe='')}/{plural}"
    return path if name is None else f"{path}/{quote(name, safe='')}"


def parse_response(text: bytes | str) -> Json:
    """Parse a response's body. Returns {} if the body isn't a JSON object, for example a proxy's error page."""
    try:
        answer: Any = read_json(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
