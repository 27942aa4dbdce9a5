"""Rendezvous methods: an offer and its answer travel over SQS, as in the protocol, or over HTTP."""

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
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, OFFER_VERSION, read_object, read_sdp
from sluice.stages import add_stage_prefix

MAX_REPLY_BYTES = 100_000
HTTP_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Answered:
    """A reply with a proxy's answer: its session description, as the JSON text of `{type, sdp}`."""

    answer: str


@dataclass(frozen=True, slots=True)
class Denied:
    """A reply in which the broker denies the offer, with the error text."""

    error: str


@dataclass(frozen=True, slots=True)
class NoReply:
    """No usable reply arrived, or no channel opened; `reason` names the step that failed."""

    reason: str


Reply = Answered | Denied | NoReply
RendezvousMethod = Callable[[str], Awaitable[Reply]]  # A method takes the offer message and returns the reply.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimeouts:
    """How long and how often a client looks for its reply. The defaults are those of Snowflake's client."""

    before_lookup_s: float = 1.0
    lookups: int = 5
    between_lookups_s: float = 1.0
    receives: int = 5
    wait_s: int = 20


def generate_client_id() -> str:
    """Generate a random ClientID of 16 lowercase hexadecimal characters; each attempt uses a new one."""
    return secrets.token_hex(8)


def build_offer_message(offer: str, *, nat: str, fingerprint: str) -> str:
    """Build the message that contains an offer, which is the same for all rendezvous methods."""
    return f"{OFFER_VERSION}\n" + json.dumps({"offer": offer, "nat": nat, "fingerprint": fingerprint})


def exchange_over_sqs(
    queues: ClientQueues,
    *,
    patience: ClientTimeouts | None = None,
    draw_id: Callable[[], str] = generate_client_id,
    answer_prefix: str = ANSWER_QUEUE_PREFIX,
) -> RendezvousMethod:
    """Return the rendezvous method over SQS. It raises `CallFailed`, for example if the credentials don't work.

    `answer_prefix` is the prefix of answer queues' names; in a deployment with a stage it includes the stage.
    """
    timeouts = patience or ClientTimeouts()

    async def exchange_offer(message: str) -> Reply:
        client_id = draw_id()
        await queues.send_offer(client_id, message)
        await asyncio.sleep(timeouts.before_lookup_s)
        for _ in range(timeouts.lookups):
            try:
                url = await queues.queue_url(answer_prefix + client_id)
                break
            except QueueGone:
                await asyncio.sleep(timeouts.between_lookups_s)
        else:
            return NoReply("the broker created no answer queue")
        for _ in range(timeouts.receives):
            body = await queues.receive(url, wait_s=timeouts.wait_s)
            if body is not None:
                return parse_reply(body)
        return NoReply("no reply in the answer queue")

    return exchange_offer


def exchange_over_http(session: aiohttp.ClientSession, client_url: str) -> RendezvousMethod:
    """Return the rendezvous method over HTTP. It raises `CallFailed` if the broker is unreachable."""
    url = client_url.rstrip("/") + "/client"

    async def exchange_offer(message: str) -> Reply:
        return parse_reply(await post(session, url, message.encode(), timeout_s=HTTP_TIMEOUT_S))

    return exchange_offer


@asynccontextmanager
async def open_sqs_method(
    connection: Connection, deployment: Deployment, *, sqscreds: str | None
) -> AsyncIterator[RendezvousMethod]:
    """Open the method over SQS, by default as the connection's identity. Raises `Malformed` for bad `sqscreds`."""
    if sqscreds is None:
        client = connection.client("sqs")
    else:
        credentials = ClientCredentials.parse(sqscreds)
        client = open_client(credentials, region=connection.region, endpoint_url=connection.endpoint_url)
    async with ClientQueues(client, deployment.offers_queue_url) as queues:
        yield exchange_over_sqs(queues, answer_prefix=add_stage_prefix(ANSWER_QUEUE_PREFIX, connection.stage))


@asynccontextmanager
async def open_http_method(deployment: Deployment) -> AsyncIterator[RendezvousMethod]:
    """Open the method over HTTP at the deployment's client URL."""
    async with aiohttp.ClientSession() as session:
        yield exchange_over_http(session, deployment.client_url)


async def post(session: aiohttp.ClientSession, url: str, body: bytes, *, timeout_s: float) -> str:
    """Send a POST request and return the reply. Raises `CallFailed` for other statuses than 200, or a long reply."""
    operation = f"POST {url}"
    try:
        async with session.post(url, data=body, timeout=aiohttp.ClientTimeout(total=timeout_s)) as response:
            if response.status != 200:  # noqa: PLR2004 - the status code of OK
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
    """Parse a reply. An invalid reply becomes `NoReply`, because Snowflake's client would also retry the offer."""
    try:
        fields = read_object(body, {"answer": str, "error": str})
        if fields.get("error"):
            return Denied(fields["error"])
        if not fields.get("answer"):
            return NoReply("malformed reply: neither answer nor error")
        read_sdp(fields["answer"])
    except Malformed as error:
        return NoReply(f"malformed reply: {error}")
    return Answered(fields["answer"])
