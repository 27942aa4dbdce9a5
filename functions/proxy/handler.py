"""The broker's HTTP address: a function URL's event in, a response out. What happens is in sluice.rendezvous."""

import os
from collections import Counter
from functools import cache
from typing import Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.proxy.parts import ProxyParts
from sluice.aws.metrics import publish
from sluice.rendezvous.http import HttpRequest, HttpResponse
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
    except Exception:  # whatever it was, the caller gets a status and the log the cause
        logger.exception("RequestFailed", path=event.get("rawPath"))
        response = HttpResponse(status=503, metrics=("RequestsFailed",))
    publish(SERVICE, Counter(response.metrics) + parts().recorder.publish())
    return response.event()
