"""Serves HTTP requests of proxies and clients at a function URL. `sluice.rendezvous` has the logic."""

import traceback
from collections import Counter
from functools import cache
from typing import Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.bootstrap import read_settings
from sluice.aws.clients import dynamodb_client, now_ms
from sluice.aws.metrics import publish
from sluice.aws.rendezvous.dependencies import make_dependencies
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.aws.rendezvous.waiting import DynamoMailboxStore
from sluice.aws.shutdown import call_at_shutdown
from sluice.rendezvous.event_recorder import HeldCounts
from sluice.rendezvous.http import BrokerSite, HttpRequest, HttpResponse, match_route
from sluice.rendezvous.mailbox import PREFIX, Mailbox
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.messages import by_fingerprint
from sluice.rendezvous.settings import ProxySettings
from sluice.rendezvous.volunteers import Volunteers
from sluice.stages import add_stage_prefix

SERVICE = "proxy"
AT_ONCE = 2  # concurrent AWS calls per offer
# Ends of most polls if there are many proxies. Their counts are published together, not at each invocation.
SENT_AWAY = frozenset({End.POLL_DEFERRED.value, End.POLL_REFUSED.value})

logger = Logger()


@cache
def dependencies() -> tuple[BrokerSite, HeldCounts]:
    """Create the function's dependencies at the first call. Later calls return the same objects."""
    settings = read_settings(ProxySettings)
    site = make_dependencies(settings, threads=AT_ONCE)
    mailboxes = DynamoMailboxStore(dynamodb_client(), settings.table)
    mailbox = Mailbox(site, mailboxes, add_stage_prefix(PREFIX, settings.stage))
    volunteers = Volunteers(
        site=site,
        mailbox=mailbox,
        allowed=settings.allowed_relay_pattern,
        held_min=settings.held_proxies_min,
        held_max=settings.held_proxies_max,
    )
    broker = BrokerSite(
        site=site,
        mailbox=mailbox,
        volunteers=volunteers,
        bridges=by_fingerprint(settings.bridges),
        statistics=DynamoStatisticsStore(dynamodb_client(), settings.table, now_ms),
        trusts_forwarded=settings.trusts_forwarded,
    )
    return broker, HeldCounts(names=SENT_AWAY, now_ms=now_ms)


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Serve one HTTP request. Blocks while the request's proxy or client waits for a match."""
    broker, counts = dependencies()
    try:
        response = broker.serve(HttpRequest.parse(event))
    except Exception as error:  # noqa: BLE001 - whatever it was, the caller gets a status and the log the cause
        logger.error("RequestFailed", route=match_route(event.get("rawPath", "")), cause=find_cause(error))  # noqa: TRY400 - a traceback's text may quote an offer
        response = HttpResponse(status=503, metrics=("RequestsFailed",))
    publish(SERVICE, counts.due(Counter(response.metrics) + broker.site.recorder.publish()))
    return response.event()


def publish_rest() -> None:
    """Publish the metrics and counts that this environment has buffered, before the environment ends."""
    if dependencies.cache_info().currsize:
        broker, counts = dependencies()
        lost = broker.site.recorder.publish(at_shutdown=True)
        publish(SERVICE, counts.rest() + lost)
        broker.site.pacing.flush(at_shutdown=True)


def find_cause(error: BaseException) -> list[str]:
    """Return an error's type, places and causes. Leaves out the error's text, which may quote an offer."""
    frames = traceback.extract_tb(error.__traceback__)
    names = [getattr(error, name) for name in ("operation", "code") if hasattr(error, name)]
    said = [" ".join([type(error).__name__, *names]), *(f"{frame.filename}:{frame.lineno}" for frame in frames)]
    earlier = error.__cause__ or error.__context__
    return said + (find_cause(earlier) if earlier else [])


# Lambda accepts this registration only while the handler's module is imported.
call_at_shutdown(publish_rest)
