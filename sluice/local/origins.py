"""Refuses requests to a server on loopback if a browser sends them for another server's page.

Every page that a developer opens can send requests to loopback. A browser adds the page's origin to requests that could
change or read anything; header Sec-Fetch-Site marks the rest. If another site's name resolves to loopback (DNS
rebinding), the origin looks like the server's own, but the Host header has the other site's name.
https://developer.mozilla.org/en-US/docs/Web/HTTP/Reference/Headers/Sec-Fetch-Site
"""

from collections.abc import Mapping
from http import HTTPStatus

LOOPBACK = "127.0.0.1"
Refusal = tuple[HTTPStatus, str]
# Values of `Sec-Fetch-Site`: another port of this host is another origin, but the same site.
FOREIGN_SITES = frozenset({"cross-site", "same-site"})


def check_origin(method: str, headers: Mapping[str, str], *, own_port: int | None = None) -> Refusal | None:
    """Return the status and the reason to refuse a request; None to admit it. Names of headers are in lower case.

    A server with pages passes its port. It admits requests of its pages, and links to its pages from other sites. A
    server without pages admits no browser, but admits any port in the Host header, because a proxy can be in between.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    name, _, port = host.partition(":")
    if name not in {LOOPBACK, "localhost"} or own_port not in {None, int(port) if port.isdecimal() else 0}:
        return HTTPStatus.MISDIRECTED_REQUEST, "another host's name"
    fetch = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    # Other sites may link to a page, but can't read it.
    is_link = own_port is not None and method == "GET" and fetch == ("navigate", "document")
    is_foreign = headers.get("sec-fetch-site") in FOREIGN_SITES and not is_link
    own_origin = None if own_port is None else f"http://{host}"
    if is_foreign or origin not in {None, own_origin}:
        return HTTPStatus.FORBIDDEN, "another origin"
    return None
