"""Serves HTTP requests of clients at a function URL. `sluice.rendezvous` has the logic."""

from functools import cache, partial
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from functions import http
from functions.bootstrap import flush_at_shutdown, read_settings
from sluice.aws.clients import dynamodb_client
from sluice.aws.rendezvous.dependencies import make_dependencies
from sluice.aws.rendezvous.waiting import DynamoMailboxStore
from sluice.rendezvous.http import ClientSite
from sluice.rendezvous.mailbox import PREFIX, Mailbox
from sluice.rendezvous.protocol.messages import index_by_fingerprint
from sluice.rendezvous.settings import BrokerSettings
from sluice.stages import add_stage_prefix

SERVICE = "client"
CONCURRENT_CALLS = 2  # Serving one offer makes at most two AWS calls at the same time.


@cache
def dependencies() -> ClientSite:
    """Create the function's dependencies at the first call. Later calls return the same object."""
    settings = read_settings(BrokerSettings)
    site = make_dependencies(settings, threads=CONCURRENT_CALLS)
    mailboxes = DynamoMailboxStore(dynamodb_client(), settings.table)
    mailbox = Mailbox(site, mailboxes, add_stage_prefix(PREFIX, settings.stage))
    return ClientSite(site=site, mailbox=mailbox, bridges=index_by_fingerprint(settings.bridges))


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Serve one HTTP request. Blocks while the client waits for an answer."""
    return http.respond(SERVICE, dependencies(), event)


publish_buffered = flush_at_shutdown(dependencies, partial(http.publish_buffered, SERVICE))
