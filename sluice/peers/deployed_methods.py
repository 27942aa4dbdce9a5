"""Rendezvous methods, opened for a deployment: over SQS with a client's credentials, or over HTTP with none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from sluice.aws.operator.client_queues import ClientCredentials, ClientQueues, open_client
from sluice.aws.operator.connections import Connection
from sluice.aws.operator.deployment import Deployment
from sluice.peers.methods import RendezvousMethod, over_http, over_sqs
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from sluice.stages import staged


@asynccontextmanager
async def sqs_method(
    connection: Connection, deployment: Deployment, *, sqscreds: str | None
) -> AsyncIterator[RendezvousMethod]:
    """Open SQS; without `sqscreds` as whoever the connection is. Raises `Malformed` for a text that isn't one."""
    if sqscreds is None:
        client = connection.client("sqs")
    else:
        credentials = ClientCredentials.parse(sqscreds)
        client = open_client(credentials, region=connection.region, endpoint_url=connection.endpoint_url)
    async with ClientQueues(client, deployment.offers_queue_url) as queues:
        yield over_sqs(queues, answer_prefix=staged(ANSWER_QUEUE_PREFIX, connection.stage))


@asynccontextmanager
async def http_method(deployment: Deployment) -> AsyncIterator[RendezvousMethod]:
    """Open the broker's URL."""
    async with aiohttp.ClientSession() as session:
        yield over_http(session, deployment.broker_url)
