"""Serves HTTP requests of proxies at a function URL. `sluice.rendezvous` has the logic."""

from functools import cache, partial
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from functions import http
from functions.bootstrap import flush_at_shutdown, read_settings
from sluice.aws.clients import dynamodb_client, now_ms, quick_sqs_client
from sluice.aws.queues import delete_message
from sluice.aws.rendezvous.dependencies import make_dependencies
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.aws.rendezvous.waiting import DynamoMailboxStore
from sluice.codec import pick_shared_fields
from sluice.rendezvous.http import ProxySite
from sluice.rendezvous.mailbox import PREFIX, Mailbox
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.settings import ProxySettings
from sluice.rendezvous.volunteers import Volunteers
from sluice.stages import add_stage_prefix

SERVICE = "proxy"
CONCURRENT_CALLS = 2  # Serving one poll makes at most two AWS calls at the same time.
# With many proxies, most polls have one of these ends. Their counts are published together, not per invocation.
BUFFERED_ENDS = frozenset({End.POLL_DEFERRED.value, End.POLL_REFUSED.value})


@cache
def dependencies() -> ProxySite:
    """Create the function's dependencies at the first call. Later calls return the same object."""
    settings = read_settings(ProxySettings)
    site = make_dependencies(settings, threads=CONCURRENT_CALLS, buffered_metrics=BUFFERED_ENDS)
    mailboxes = DynamoMailboxStore(dynamodb_client(), settings.table)
    mailbox = Mailbox(site, mailboxes, add_stage_prefix(PREFIX, settings.stage))
    volunteers = Volunteers(
        site=site,
        mailbox=mailbox,
        **pick_shared_fields(settings, Volunteers),
        delete_message=partial(delete_message, quick_sqs_client(), settings.offers_url),
    )
    return ProxySite(
        site=site,
        volunteers=volunteers,
        statistics=DynamoStatisticsStore(dynamodb_client(), settings.table, now_ms),
        trusted_hops=settings.trusted_hops,
    )


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Serve one HTTP request. Blocks while the proxy waits for a client's offer."""
    return http.respond(SERVICE, dependencies(), event)


publish_buffered = flush_at_shutdown(dependencies, partial(http.publish_buffered, SERVICE))
