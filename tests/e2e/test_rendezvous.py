"""The rendezvous as deployed: its functions behind their queues and URL, under enforced IAM, in real time."""

import asyncio
import base64
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import aiohttp
import pytest

from sluice.aws.operator.client_queues import ClientCredentials, ClientQueues, open_client
from sluice.aws.rendezvous.offers import DynamoOfferStore
from sluice.aws.rendezvous.waiting import DynamoProxyPools
from sluice.local.traffic import Proxies, answer, offer_body
from sluice.peers.channels import Network
from sluice.peers.client import Connected, connect
from sluice.peers.methods import Denied, RendezvousMethod, Reply, over_http, over_sqs, parse_reply
from sluice.peers.services import Echo
from sluice.peers.volunteer import Volunteer, VolunteerLimits
from sluice.rendezvous.ports import OfferRecord
from sluice.rendezvous.protocol.matching import Nat, Pool
from sluice.rendezvous.protocol.messages import NO_PROXIES, TIMED_OUT, OfferMethod
from tests.deployed import Deployed, send_all

T = TypeVar("T")

ON_LOOPBACK = Network(loopback=True)
WITHIN_S = 120
PREFIX = "snowflake-client-"
AT_ONCE = 4  # cold starts side by side
THROTTLED = 400  # the status of a request that is refused, and made again


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def proxies_of(deployed: Deployed) -> AsyncIterator[Proxies]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Proxies(session, deployed.broker_url)


def clients_of(deployed: Deployed) -> ClientQueues:
    """With the client's own credentials."""
    credentials = ClientCredentials.parse(deployed.client_sqscreds)
    client = open_client(credentials, region=deployed.region, endpoint_url=deployed.endpoint)
    return ClientQueues(client, deployed.offers_queue_url)


def pools_of(deployed: Deployed) -> DynamoProxyPools:
    return DynamoProxyPools(deployed.dynamodb, deployed.deployment.waiting_table_name, random.random)


def count(pools: DynamoProxyPools, pool: Pool) -> int:
    """How many wait."""
    return len(pools.profiles(pool, now_ms=now_ms(), shards=1))


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, WITHIN_S))


async def until(done: Callable[[], bool]) -> None:
    """For what has no event to wait for. The test's own time limit ends it."""
    while not await asyncio.to_thread(done):
        await asyncio.sleep(0.1)


async def nobody_waits(deployed: Deployed) -> None:
    """Until the polls that an earlier test left behind are over."""
    pools = pools_of(deployed)
    await until(lambda: sum(count(pools, pool) for pool in Pool) == 0)


@pytest.mark.parametrize("method", ["sqs", "http"])
def test_an_offer_is_answered_and_bytes_come_back_through_webrtc(deployed: Deployed, method: str) -> None:
    async def echoed() -> bytes:
        await nobody_waits(deployed)
        async with aiohttp.ClientSession() as session, clients_of(deployed) as queues:
            volunteer = Volunteer(
                session,
                deployed.broker_url,
                Echo(),
                network=ON_LOOPBACK,
                nat=Nat.UNRESTRICTED,
                limits=VolunteerLimits(pause_s=0),
            )
            serving = asyncio.create_task(volunteer.run())
            try:
                exchange = over_sqs(queues) if method == "sqs" else over_http(session, deployed.broker_url)
                return await through_the_first_channel(deployed, exchange, b"there and back")
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    assert run(echoed()) == b"there and back"


async def through_the_first_channel(deployed: Deployed, exchange: RendezvousMethod, data: bytes) -> bytes:
    """What comes back of `data`."""
    pools = pools_of(deployed)
    await until(lambda: count(pools, Pool.UNRESTRICTED) > 0)
    outcome = await connect(exchange, network=ON_LOOPBACK)
    assert isinstance(outcome, Connected), outcome
    async with outcome.peer:
        await outcome.channel.send(data)
        return await outcome.channel.receive_exactly(len(data))


def test_without_a_proxy_the_client_is_denied(deployed: Deployed) -> None:
    assert run(reply_to(deployed, offer_body("1"))) == Denied(NO_PROXIES)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("no version", "unsupported message version"),
        ("2.0\n{}", "unsupported message version"),
        ("1.0\n{}", "no supplied offer"),
        (
            '1.0\n{"offer": "{}"}',
            "malformed session description: cannot deserialize SessionDescription without type field",
        ),
        (offer_body("1", fingerprint="zz"), "cannot decode fingerprint"),
        (offer_body("1").replace('"unknown"', '"odd"'), "invalid NAT type"),
        (offer_body("1", fingerprint="00" * 20), "bridge with requested fingerprint is unknown to the broker"),
    ],
)
def test_a_malformed_offer_gets_its_reply(deployed: Deployed, body: str, error: str) -> None:
    assert run(reply_to(deployed, body)) == Denied(error)


async def reply_to(deployed: Deployed, body: str) -> Reply:
    await nobody_waits(deployed)
    async with clients_of(deployed) as queues:
        return await over_sqs(queues)(body)


def test_a_client_that_no_proxy_answers_is_told_so(deployed: Deployed) -> None:
    async def timed_out() -> tuple[Reply, bool, str]:
        await nobody_waits(deployed)
        async with proxies_of(deployed) as proxies, clients_of(deployed) as queues:
            silent = asyncio.create_task(proxies.poll())
            pools = pools_of(deployed)
            await until(lambda: count(pools, Pool.UNRESTRICTED) > 0)
            reply = await over_sqs(queues)(offer_body("2"))
            polled = await silent
            return reply, polled.matched, await proxies.answer(polled.sid, answer("2"))

    reply, matched, status = run(timed_out())
    assert (reply, matched, status) == (Denied(TIMED_OUT), True, "client gone")


def test_an_offer_delivered_twice_takes_one_proxy(deployed: Deployed) -> None:
    async def matches() -> list[bool]:
        await nobody_waits(deployed)
        async with proxies_of(deployed) as proxies:
            polls = [asyncio.create_task(proxies.poll()) for _ in range(2)]
            pools = pools_of(deployed)
            await until(lambda: count(pools, Pool.UNRESTRICTED) == len(polls))
            event = offer_event(deployed, client_id="delivered-twice", sent_at_ms=now_ms())
            for _ in range(2):
                assert await asyncio.to_thread(deployed.invoke, "Broker", event) == {"batchItemFailures": []}
            return sorted(polled.matched for polled in await asyncio.gather(*polls))

    assert run(matches()) == [False, True]


def test_a_stale_offer_takes_no_proxy_and_leaves_no_queue(deployed: Deployed) -> None:
    async def matched() -> bool:
        await nobody_waits(deployed)
        async with proxies_of(deployed) as proxies:
            poll = asyncio.create_task(proxies.poll())
            pools = pools_of(deployed)
            await until(lambda: count(pools, Pool.UNRESTRICTED) == 1)
            event = offer_event(deployed, client_id="stale", sent_at_ms=now_ms() - 5_000)
            await asyncio.to_thread(deployed.invoke, "Broker", event)
            return (await poll).matched

    assert not run(matched())
    assert deployed.sqs.list_queues(QueueNamePrefix=PREFIX + "stale").get("QueueUrls", []) == []


def offer_event(deployed: Deployed, *, client_id: str, sent_at_ms: int) -> dict[str, Any]:
    """What the trigger gives the broker for one offer."""
    queue = deployed.offers_queue_url.rsplit("/", 1)[1]
    return {
        "Records": [
            {
                "messageId": client_id,
                "receiptHandle": "handle",
                "body": offer_body("3"),
                "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": str(sent_at_ms)},
                "messageAttributes": {"ClientID": {"dataType": "String", "stringValue": client_id}},
                "eventSource": "aws:sqs",
                "eventSourceARN": f"arn:aws:sqs:{deployed.region}:{deployed.account}:{queue}",
                "awsRegion": deployed.region,
            }
        ]
    }


def test_a_message_without_a_client_id_is_consumed_and_makes_no_queue(deployed: Deployed) -> None:
    before = queues_of_clients(deployed)
    deployed.sqs.send_message(QueueUrl=deployed.offers_queue_url, MessageBody=offer_body("4"))
    run(until(lambda: deployed.depth(deployed.offers_queue_url) == 0))
    assert queues_of_clients(deployed) <= before


def queues_of_clients(deployed: Deployed) -> set[str]:
    pages = deployed.sqs.get_paginator("list_queues").paginate(QueueNamePrefix=PREFIX)
    return {url for page in pages for url in page.get("QueueUrls", [])}


def test_answer_queues_are_swept_at_one_request_each(deployed: Deployed) -> None:
    offers = DynamoOfferStore(deployed.dynamodb, deployed.deployment.table_name)
    names = [f"{PREFIX}swept-{number}" for number in range(3)]
    for name in names:
        deployed.make_queue(name)
        client_id = name.removeprefix(PREFIX)
        offers.record(
            OfferRecord(client_id=client_id, sent_at_ms=now_ms() - 121_000, method=OfferMethod.SQS, token="t")
        )
    offset = deployed.request_offset()
    # The schedule's own sweep may be faster; whoever sweeps, each queue is deleted, and by one request.
    deployed.invoke("Sweeper", {})
    run(until(lambda: not {url for url in queues_of_clients(deployed) if "swept-" in url}))
    made = (request for request in deployed.requests_since(offset) if request.status < THROTTLED)
    requests = [request for request in made if request.queue in names]
    assert Counter((request.action, request.queue) for request in requests) == Counter(
        ("DeleteQueue", name) for name in names
    )


def test_the_amp_cache_method_replies_in_a_page(deployed: Deployed) -> None:
    async def page() -> str:
        await nobody_waits(deployed)
        request = base64.urlsafe_b64encode(offer_body("5").encode()).decode().rstrip("=")
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{deployed.broker_url}amp/client/0pad/{request}") as response,
        ):
            assert (response.status, response.headers["Cache-Control"]) == (200, "max-age=15")
            return await response.text()

    armored = "".join(part.split("</pre>")[0] for part in run(page()).split("<pre>")[1:])
    encoded = "".join(armored.split())
    assert parse_reply(base64.b64decode(encoded.removeprefix("0")).decode()) == Denied(NO_PROXIES)


@pytest.mark.parametrize(
    ("path", "body"),
    [("proxy", b"no JSON"), ("proxy", b'{"Sid":"x","Version":"2.0"}'), ("answer", b"{}"), ("client", b"x" * 100_001)],
)
def test_a_malformed_request_is_a_400_with_an_empty_body(deployed: Deployed, path: str, body: bytes) -> None:
    async def answered() -> tuple[int, bytes]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(deployed.broker_url + path, data=body) as response,
        ):
            assert response.headers["Access-Control-Allow-Origin"] == "*"
            return response.status, await response.read()

    assert run(answered()) == (400, b"")


@pytest.mark.parametrize(
    "waiting",
    # A client gives up after five seconds, and a small machine's processors serve only so many by then.
    [
        10,
        pytest.param(20, marks=pytest.mark.slow),
        pytest.param(50, marks=pytest.mark.slow),
        pytest.param(100, marks=pytest.mark.slow),
    ],
)
def test_twice_as_many_offers_as_proxies_take_each_proxy_once(deployed: Deployed, waiting: int) -> None:
    """Half of them answered, half of them denied, no proxy twice."""
    outcomes = asyncio.run(asyncio.wait_for(offers_at_once(deployed, waiting), 240))
    assert outcomes == {"answered": waiting, NO_PROXIES: waiting, "answers from a proxy that answered before": 0}


async def offers_at_once(deployed: Deployed, waiting: int) -> Counter[str]:
    async with proxies_of(deployed) as proxies:
        await start_environments(deployed, proxies, waiting)
        await nobody_waits(deployed)
        serving = [asyncio.create_task(answer_once(proxies, str(number))) for number in range(waiting)]
        pools = pools_of(deployed)
        await until(lambda: count(pools, Pool.UNRESTRICTED) == waiting)
        crowd = f"crowd-of-{waiting}-"  # another one's queues may still be there
        client_ids = [f"{crowd}{number:03d}" for number in range(2 * waiting)]
        await asyncio.to_thread(send_offers, deployed, client_ids)
        await asyncio.gather(*serving)
        await until(lambda: sum(crowd in url for url in queues_of_clients(deployed)) == len(client_ids))
        replies = [await asyncio.to_thread(read_reply, deployed, client_id) for client_id in client_ids]
    answers = [reply["answer"] for reply in replies if "answer" in reply]
    outcomes = Counter(reply["error"] for reply in replies if "error" in reply)
    outcomes["answered"] = len(answers)
    outcomes["answers from a proxy that answered before"] = len(answers) - len(set(answers))
    return outcomes


async def start_environments(deployed: Deployed, proxies: Proxies, number: int) -> None:
    """Has that many execution environments of the proxy function; all cold at once, none would serve in time."""
    pools = pools_of(deployed)
    polling: list[asyncio.Task[None]] = []
    while len(polling) < number:
        polling += [asyncio.create_task(proxies.serve()) for _ in range(AT_ONCE)]
        most = len(polling) - AT_ONCE  # some are just between two polls
        await until(partial(more_wait_than, pools, most))
    for task in polling:
        task.cancel()
    await asyncio.gather(*polling, return_exceptions=True)


def more_wait_than(pools: DynamoProxyPools, number: int) -> bool:
    return count(pools, Pool.UNRESTRICTED) > number


async def answer_once(proxies: Proxies, name: str) -> None:
    polled = await proxies.poll()
    assert polled.matched
    assert await proxies.answer(polled.sid, answer(name)) == "success"


def send_offers(deployed: Deployed, client_ids: list[str]) -> None:
    entries = [
        {
            "MessageBody": offer_body(client_id.rpartition("-")[2]),
            "MessageAttributes": {"ClientID": {"DataType": "String", "StringValue": client_id}},
        }
        for client_id in client_ids
    ]
    send_all(deployed.sqs, deployed.offers_queue_url, entries)


def read_reply(deployed: Deployed, client_id: str) -> dict[str, str]:
    url = deployed.sqs.get_queue_url(QueueName=PREFIX + client_id)["QueueUrl"]
    messages = deployed.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10, MaxNumberOfMessages=10)["Messages"]
    replies: list[dict[str, str]] = [json.loads(message["Body"]) for message in messages]
    # A client reads as soon as there is something: an answer before that there is no proxy, and that before a time-out.
    return min(replies, key=lambda reply: ("answer" not in reply, reply.get("error") != NO_PROXIES))
