"""Who gets in: only a browser on this machine that was told the address, and only the console's own pages in it.

Loopback is open to each user of the machine and to each page of any site that a browser has open: so the address has a
token that nobody guesses, a request has to name this host, which stops names that are pointed at loopback (DNS
rebinding), and to come from this origin. What is served may run no script but its own files, and may ask nobody else.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.local.cloud import LOOPBACK

TOKEN_BYTES = 24
CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Of `Sec-Fetch-Site`: another port of this host is another origin, but the same site.
FROM_ELSEWHERE = frozenset({"cross-site", "same-site"})
# That no text becomes markup, by whatever mistake of a script, is what trusted types are for.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # the address has the token
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def new_token() -> str:
    """Draw what nobody guesses."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What who doesn't get in is told."""

    status: HTTPStatus
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Lets requests in, by what they say of themselves."""

    token: str
    port: int

    @property
    def address(self) -> str:
        """Where the console is, for who may see it."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"

    @property
    def hosts(self) -> frozenset[str]:
        """What a request may call us."""
        return frozenset({f"{LOOPBACK}:{self.port}", f"localhost:{self.port}"})

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Say why a request doesn't get in; None where it does. Names of headers are in lower case."""
        host = headers.get("host", "")
        if host not in self.hosts:
            return Refusal(status=HTTPStatus.MISDIRECTED_REQUEST, text="another host's name")
        origin = headers.get("origin")
        if origin not in {None, f"http://{host}"} or (
            headers.get("sec-fetch-site") in FROM_ELSEWHERE and not _is_opened(method, headers)
        ):
            return Refusal(status=HTTPStatus.FORBIDDEN, text="another origin")
        if method in CHANGING and origin is None:
            return Refusal(status=HTTPStatus.FORBIDDEN, text="no origin")
        # Compared in a time that says nothing of how much of it was right.
        if not hmac.compare_digest(path.split("/", 2)[1].encode() if "/" in path else b"", self.token.encode()):
            return Refusal(status=HTTPStatus.NOT_FOUND, text="no such page")
        return None


def _is_opened(method: str, headers: Mapping[str, str]) -> bool:
    """Tell whether a browser goes to the page, by whatever link: only who looks at it sees it then."""
    return method == "GET" and (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == (
        "navigate",
        "document",
    )


@dataclass(frozen=True, slots=True)
class Guarded:
    """An ASGI app behind the door: it is asked below the token, and all that it says has the headers."""

    app: ASGIApp
    door: Door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass the request on."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self.door.refusal(scope["method"], scope["path"], headers)
        guarded = _with_headers(send)
        if refusal is not None:
            await PlainTextResponse(f"{refusal.text}\n", status_code=refusal.status)(scope, receive, guarded)
            return
        await self.app({**scope, "root_path": f"/{self.door.token}"}, receive, guarded)


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept: list[Any] = [each for each in message.get("headers", []) if each[0].decode().lower() not in HEADERS]
            message["headers"] = kept + [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        await send(message)

    return sent
