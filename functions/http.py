"""Serves the HTTP events of function URLs, for the proxy and client functions. `sluice.rendezvous` has the logic."""

import traceback
from typing import Any

from aws_lambda_powertools.logging import Logger

from sluice.aws.metrics import publish
from sluice.rendezvous.http import HttpRequest, HttpResponse, HttpSite, match_route

logger = Logger()


def respond(service: str, site: HttpSite, event: dict[str, Any]) -> dict[str, Any]:
    """Serve one HTTP request and publish its metrics. Blocks while a proxy or a client waits for its reply."""
    try:
        response = site.serve(HttpRequest.parse(event))
        site.site.pacing.flush_counts()
    except Exception as error:  # noqa: BLE001 - whatever it was, the caller gets a status and the log the cause
        logger.error("RequestFailed", route=match_route(event.get("rawPath", "")), cause=find_cause(error))  # noqa: TRY400 - a traceback's text may quote an offer
        response = HttpResponse(status=503, metrics=("RequestsFailed",))
    publish(service, site.site.recorder.publish(response.metrics))
    return response.event()


def publish_buffered(service: str, site: HttpSite) -> None:
    """Publish buffered metrics and counts before the execution environment ends."""
    publish(service, site.site.recorder.publish(at_shutdown=True))
    site.site.pacing.flush_counts(at_shutdown=True)


def find_cause(error: BaseException) -> list[str]:
    """Return an error's type, code locations and causes, but not its text, which may quote an offer."""
    frames = traceback.extract_tb(error.__traceback__)
    names = [getattr(error, name) for name in ("operation", "code") if hasattr(error, name)]
    said = [" ".join([type(error).__name__, *names]), *(f"{frame.filename}:{frame.lineno}" for frame in frames)]
    earlier = error.__cause__ or error.__context__
    return said + (find_cause(earlier) if earlier else [])
