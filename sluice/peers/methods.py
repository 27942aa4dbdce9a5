"""How an offer gets to the broker and its answer back: over SQS, as the protocol says, or over HTTP."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from sluice.aws.connections import Connection
from sluice.aws.deployment import Deployment
from sluice.aws.rendezvous.clients import ClientCredentials, ClientQueues, open_client
from sluice.errors import CallFailed, Malformed, QueueGone
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, OFFER_VERSION, description_fault, read_object
from sluice.stages import staged

MAX_REPLY_BYTES = 100_000
HTTP_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Answered:
    """The session description of a proxy, as the JSON text of `{type, sdp}`."""

    answer: str


@dataclass(frozen=True, slots=True)
class Denied:
    """The broker's error text."""

    error: str


@dataclass(frozen=True, slots=True)
class Lost:
    """No usable reply, or no channel; the text says how far it got."""

    reason: str


Reply = Answered | Denied | Lost
RendezvousMethod = Callable[[str], Awaitable[Reply]]  # an offer's message in, the reply out


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a client keeps asking: the defaults are the real client's."""

    before_lookup_s: float = 1.0
    lookups: int = 5
    between_lookups_s: float = 1.0
    receives: int = 5
    wait_s: int = 20


def draw_client_id() -> str:
    """Draw a ClientID: 16 lowercase hex characters, new for every attempt."""
    return secrets.token_hex(8)


def offer_message(offer: str, *, nat: str, fingerprint: str) -> str:
    """Write the body that carries an offer, the same for every method."""
    return f"{OFFER_VERSION}\n" + json.dumps({"offer": offer, "nat": nat, "fingerprint": fingerprint})


def over_sqs(
    queues: ClientQueues,
    *,
    patience: Patience | None = None,
    draw_id: Callable[[], str] = draw_client_id,
    answer_prefix: str = ANSWER_QUEUE_PREFIX,
) -> RendezvousMethod:
    """Rendezvous over SQS. The method raises `CallFailed`: credentials that don't work are no lost offer.

    `answer_prefix` is what answer queues' names begin with, which at a stage isn't the protocol's.
    """
    pace = patience or Patience()

    async def exchange(message: str) -> Reply:
        client_id = draw_id()
        await queues.send_offer(client_id, message)
        await asyncio.sleep(pace.before_lookup_s)
        for _ in range(pace.lookups):
            try:
                url = await queues.queue_url(answer_prefix + client_id)
                break
            except QueueGone:
                await asyncio.sleep(pace.between_lookups_s)
        else:
            return Lost("the broker made no answer queue")
        for _ in range(pace.receives):
            body = await queues.receive(url, wait_s=pace.wait_s)
            if body is not None:
                return parse_reply(body)
        return Lost("no reply in the answer queue")

    return exchange


def over_http(session: aiohttp.ClientSession, broker_url: str) -> RendezvousMethod:
    """Rendezvous over `POST <broker>/client`. The method raises `CallFailed` where the broker can't be reached."""
    url = broker_url.rstrip("/") + "/client"

    async def exchange(message: str) -> Reply:
        return parse_reply(await post(session, url, message.encode(), timeout_s=HTTP_TIMEOUT_S))

    return exchange


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


async def post(session: aiohttp.ClientSession, url: str, body: bytes, *, timeout_s: float) -> str:
    """Post, and read the body of a 200. Raises `CallFailed` for all else, a reply over `MAX_REPLY_BYTES` included."""
    operation = f"POST {url}"
    try:
        async with session.post(url, data=body, timeout=aiohttp.ClientTimeout(total=timeout_s)) as response:
            if response.status != 200:  # noqa: PLR2004 - OK's own name says no more
                raise CallFailed(operation, str(response.status), response.reason or "")
            reply = b""
            async for chunk in response.content.iter_any():
                reply += chunk
                if len(reply) > MAX_REPLY_BYTES:
                    raise CallFailed(operation, "200", f"a reply of more than {MAX_REPLY_BYTES} bytes")
            return reply.decode(errors="replace")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise CallFailed(operation, type(error).__name__, str(error)) from error


def parse_reply(body: str) -> Reply:
    """Read a reply. One that says nothing we understand is a lost offer: the client would try again."""
    try:
        fields = read_object(body, {"answer": str, "error": str})
    except Malformed as error:
        return Lost(f"malformed reply: {error}")
    if fields.get("error"):
        return Denied(fields["error"])
    fault = description_fault(fields["answer"]) if fields.get("answer") else "neither answer nor error"
    return Answered(fields["answer"]) if fault is None else Lost(f"malformed reply: {fault}")
