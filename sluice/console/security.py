"""Controls access: admits only browsers on this machine that have the address, and only the console's own pages.

Other users of the machine, and other pages in the browser, can also connect to loopback. Therefore the address contains
a random token, the Host header must be this host (against DNS rebinding), and the Origin must be the console's. The
content security policy allows only the console's own scripts, and no requests to other hosts.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.local.origins import LOOPBACK, Refusal, check_origin

TOKEN_BYTES = 24
STATE_CHANGING_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Trusted types keep the pages' scripts from turning text into markup by mistake.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # The address contains the token, which other hosts must not get.
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def generate_token() -> str:
    """Generate a random secret token for the console's address."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """Decides from a request's path and headers whether the request is admitted."""

    token: str
    port: int

    @property
    def address(self) -> str:
        """The console's address, which contains the token."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Return the HTTP status and reason if the request is refused, else None. Header names are in lower case."""
        refusal = check_origin(method, headers, own_port=self.port)
        if refusal is not None:
            return refusal
        if method in STATE_CHANGING_METHODS and "origin" not in headers:
            return HTTPStatus.FORBIDDEN, "no origin"
        # The comparison takes constant time, because its duration must not reveal how much of the token was right.
        if not hmac.compare_digest(path.split("/", 2)[1].encode() if "/" in path else b"", self.token.encode()):
            return HTTPStatus.NOT_FOUND, "no such page"
        return None


@dataclass(frozen=True, slots=True)
class GuardedApp:
    """An ASGI app. Passes a request to `app` if the policy admits it, and adds security headers to responses."""

    app: ASGIApp
    policy: AccessPolicy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass the request to the app."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self.policy.check(scope["method"], scope["path"], headers)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept_headers: list[Any] = [
                    header for header in message.get("headers", []) if header[0].decode().lower() not in HEADERS
                ]
                message["headers"] = kept_headers + [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        if refusal is not None:
            status, reason = refusal
            await PlainTextResponse(f"{reason}\n", status_code=status)(scope, receive, send_with_headers)
            return
        await self.app({**scope, "root_path": f"/{self.policy.token}"}, receive, send_with_headers)
