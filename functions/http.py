"""Serves a function URL's event, for the functions that have one. What happens is in sluice.rendezvous."""

import traceback
from typing import Any

from aws_lambda_powertools.logging import Logger

from sluice.aws.metrics import publish
from sluice.rendezvous.http import HttpRequest, HttpResponse, HttpSite, match_route

logger = Logger()


def respond(service: str, site: HttpSite, event: dict[str, Any]) -> dict[str, Any]:
    """Serve one request and publish its metrics; blocks while a proxy or a client waits."""
    try:
        response = site.serve(HttpRequest.parse(event))
        site.site.pacing.flush_counts()
    except Exception as error:  # noqa: BLE001 - whatever it was, the caller gets a status and the log the cause
        logger.error("RequestFailed", route=match_route(event.get("rawPath", "")), cause=find_cause(error))  # noqa: TRY400 - a traceback's text may quote an offer
        response = HttpResponse(status=503, metrics=("RequestsFailed",))
    publish(service, site.site.recorder.publish(response.metrics))
    return response.event()


def publish_buffered(service: str, site: HttpSite) -> None:
    """Publish the metrics and counts that this environment has buffered, before the environment ends."""
    publish(service, site.site.recorder.publish(at_shutdown=True))
    site.site.pacing.flush_counts(at_shutdown=True)


def find_cause(error: BaseException) -> list[str]:
    """Return an error's type, places and causes. Leaves out the error's text, which may quote an offer."""
    frames = traceback.extract_tb(error.__traceback__)
    names = [getattr(error, name) for name in ("operation", "code") if hasattr(error, name)]
    said = [" ".join([type(error).__name__, *names]), *(f"{frame.filename}:{frame.lineno}" for frame in frames)]
    earlier = error.__cause__ or error.__context__
    return said + (find_cause(earlier) if earlier else [])
