"""The broker's HTTP address: a function URL's event in, a response out. What happens is in sluice.rendezvous."""

import os
import traceback
from collections import Counter
from functools import cache
from typing import Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.proxy.parts import ProxyParts
from sluice.aws.metrics import publish
from sluice.aws.shutdown import call_at_shutdown
from sluice.rendezvous.http import HttpRequest, HttpResponse, route_of
from sluice.rendezvous.settings import ProxySettings

SERVICE = "proxy"

logger = Logger()


@cache
def parts() -> ProxyParts:
    """Put together at the environment's first call."""
    return ProxyParts.make(ProxySettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Serve one request; blocks while a proxy or a client waits."""
    try:
        response = parts().site.serve(HttpRequest.parse(event))
    except Exception as error:  # noqa: BLE001 - whatever it was, the caller gets a status and the log the cause
        logger.error("RequestFailed", route=route_of(event.get("rawPath", "")), cause=cause_of(error))  # noqa: TRY400
        response = HttpResponse(status=503, metrics=("RequestsFailed",))
    publish(SERVICE, parts().counts.due(Counter(response.metrics) + parts().recorder.publish()))
    return response.event()


def publish_rest() -> None:
    """Publish all that this environment still holds back."""
    if parts.cache_info().currsize:
        lost = parts().recorder.publish(at_shutdown=True)
        publish(SERVICE, parts().counts.rest() + lost)
        parts().pacing.flush(at_shutdown=True)


def cause_of(error: BaseException) -> list[str]:
    """Say what an error is, where it was raised, and what it came from: never its text, which may quote an offer."""
    frames = traceback.extract_tb(error.__traceback__)
    names = [getattr(error, name) for name in ("operation", "code") if hasattr(error, name)]
    said = [" ".join([type(error).__name__, *names]), *(f"{frame.filename}:{frame.lineno}" for frame in frames)]
    earlier = error.__cause__ or error.__context__
    return said + (cause_of(earlier) if earlier else [])


# At the import, since Lambda takes no registration later.
call_at_shutdown(publish_rest)
