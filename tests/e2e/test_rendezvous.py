"""The rendezvous as deployed: its functions behind their queues and URL, under enforced IAM, in real time."""

import asyncio
import base64
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import aiohttp
import pytest

from sluice.aws.clients import GONE
from sluice.aws.rendezvous.clients import ClientCredentials, ClientQueues, open_client
from sluice.aws.rendezvous.offers import DynamoOfferStore
from sluice.errors import CallFailed
from sluice.peers.channels import Network
from sluice.peers.client import Connected, connect
from sluice.peers.methods import Denied, RendezvousMethod, Reply, exchange_over_http, exchange_over_sqs, parse_reply
from sluice.peers.volunteer import Volunteer, VolunteerLimits
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import Nat, OfferMethod, OfferRecord
from tests.deployed import Deployed, retry_until_accepted, send_all
from tests.polls import count_stale_offers, nobody_waits, now_ms, until, until_nobody_waits, until_waiting
from tests.traffic import Proxies, answer, offer, offer_body

T = TypeVar("T")

ON_LOOPBACK = Network(loopback=True)
WITHIN_S = 120
TRIES = 3
PREFIX = "snowflake-client-"
AT_ONCE = 4  # cold starts side by side
THROTTLED = 400  # the status of a request that is refused, and made again


@asynccontextmanager
async def proxies_of(deployed: Deployed) -> AsyncIterator[Proxies]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Proxies(session, deployed.broker_url)


def clients_of(deployed: Deployed) -> ClientQueues:
    """With the client's own credentials."""
    credentials = ClientCredentials.parse(deployed.client_sqscreds)
    client = open_client(credentials, region=deployed.region, endpoint_url=deployed.endpoint)
    return ClientQueues(client, deployed.offers_queue_url)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, WITHIN_S))


@pytest.mark.parametrize("method", ["sqs", "http"])
def test_an_offer_is_answered_and_bytes_come_back_through_webrtc(deployed: Deployed, method: str) -> None:
    async def echoed() -> bytes:
        await nobody_waits(deployed)
        async with aiohttp.ClientSession() as session, clients_of(deployed) as queues:
            volunteer = Volunteer(
                session,
                deployed.broker_url,
                network=ON_LOOPBACK,
                nat=Nat.UNRESTRICTED,
                limits=VolunteerLimits(pause_s=0),
            )
            serving = asyncio.create_task(volunteer.run())
            try:
                exchange = (
                    exchange_over_sqs(queues)
                    if method == "sqs"
                    else exchange_over_http(session, deployed.deployment.client_url)
                )
                return await through_the_first_channel(deployed, exchange, b"there and back")
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    assert run(echoed()) == b"there and back"


async def through_the_first_channel(deployed: Deployed, exchange: RendezvousMethod, data: bytes) -> bytes:
    """Send `data` through the first channel and return what comes back.

    As Snowflake's client, it tries again if its five seconds end without an answer: the first calls of a deployment
    start functions, which takes longer on a busy machine.
    """
    for _ in range(TRIES):
        await until_waiting(deployed)
        outcome = await connect(exchange, network=ON_LOOPBACK)
        if isinstance(outcome, Connected):
            break
    assert isinstance(outcome, Connected), outcome
    async with outcome.peer:
        await outcome.channel.send(data)
        return await outcome.channel.receive_exactly(len(data))


def test_without_a_proxy_the_client_is_denied(deployed: Deployed) -> None:
    """An earlier test's poll that comes late, as its function was still starting, takes one offer at most."""
    replies = [run(reply_to(deployed, offer_body("1")))]
    while replies[-1] == Denied(End.OFFER_TIMED_OUT.reply) and len(replies) < TRIES:
        replies.append(run(reply_to(deployed, offer_body("1"))))
    assert replies[-1] == Denied(End.OFFER_DENIED.reply)


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
        (offer_body("1", fingerprint="00" * 20), "bridge with requested fingerprint is unknown to the broker"),
    ],
)
def test_a_malformed_offer_gets_its_reply(deployed: Deployed, body: str, error: str) -> None:
    assert run(reply_to(deployed, body)) == Denied(error)


async def reply_to(deployed: Deployed, body: str) -> Reply:
    await nobody_waits(deployed)
    async with clients_of(deployed) as queues:
        return await exchange_over_sqs(queues)(body)


def test_a_client_that_no_proxy_answers_is_told_so(deployed: Deployed) -> None:
    async def timed_out() -> tuple[Reply, bool, str]:
        await nobody_waits(deployed)
        async with proxies_of(deployed) as proxies, clients_of(deployed) as queues:
            silent = asyncio.create_task(proxies.poll())
            await until_waiting(deployed)
            reply = await exchange_over_sqs(queues)(offer_body("2"))
            polled = await silent
            return reply, polled.matched, await proxies.answer(polled.sid, answer("2"))

    reply, matched, status = run(timed_out())
    assert (reply, matched, status) == (Denied(End.OFFER_TIMED_OUT.reply), True, "client gone")


def test_an_offer_delivered_twice_takes_one_proxy(deployed: Deployed) -> None:
    twice = offer_event(deployed, client_id="delivered-twice", sent_at_ms=now_ms(), name="3")
    after = offer_event(deployed, client_id="comes-after", sent_at_ms=now_ms(), name="4")
    assert run(offers_given(deployed, twice, twice, after, proxies=2)) == sorted([offer("3"), offer("4")])


def test_a_stale_offer_takes_no_proxy_and_leaves_no_queue(deployed: Deployed) -> None:
    stale = offer_event(deployed, client_id="stale", sent_at_ms=now_ms() - 5_000, name="3")
    fresh = offer_event(deployed, client_id="fresh", sent_at_ms=now_ms(), name="4")
    assert run(offers_given(deployed, stale, fresh, proxies=1)) == [offer("4")]
    assert deployed.sqs.list_queues(QueueNamePrefix=PREFIX + "stale").get("QueueUrls", []) == []


async def offers_given(deployed: Deployed, *events: dict[str, Any], proxies: int) -> list[str]:
    """What so many proxies are given that wait while the broker is called with these events, one after the other.

    The last event has an offer for the last proxy, so that all of them hear at once.
    """
    began_ms = now_ms()
    await nobody_waits(deployed)
    async with proxies_of(deployed) as polling:
        polls = [asyncio.create_task(polling.poll()) for _ in range(proxies)]
        await until_waiting(deployed, proxies)
        # The offers are as old as they were when this began, however long the proxies took.
        late_ms = now_ms() - began_ms
        for attributes in {id(event): event["Records"][0]["attributes"] for event in events}.values():
            attributes["SentTimestamp"] = str(int(attributes["SentTimestamp"]) + late_ms)
        for number, event in enumerate(events):
            answered = await asyncio.to_thread(deployed.invoke, "Broker", event)
            # The message of a second delivery stays until the offer is decided, unless five seconds are over by now.
            staying = [{"itemIdentifier": record["messageId"]} for record in event["Records"]]
            assert answered["batchItemFailures"] in ([], staying if event in events[:number] else [])
        return sorted([polled.offer for polled in await asyncio.gather(*polls)])


def offer_event(deployed: Deployed, *, client_id: str, sent_at_ms: int, name: str) -> dict[str, Any]:
    """What the trigger gives the broker for one offer."""
    queue = deployed.offers_queue_url.rsplit("/", 1)[1]
    return {
        "Records": [
            {
                "messageId": client_id,
                "receiptHandle": "handle",
                "body": offer_body(name),
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

    def are_swept() -> bool:
        """Sweeps. The schedule's own sweep may be faster, and the next sweep gets what fails to be deleted."""
        deployed.invoke("Sweeper", {})
        return not {url for url in queues_of_clients(deployed) if "swept-" in url}

    run(until(are_swept))
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
            session.get(f"{deployed.deployment.client_url}amp/client/0pad/{request}") as response,
        ):
            assert (response.status, response.headers["Cache-Control"]) == (200, "max-age=15")
            return await response.text()

    armored = "".join(part.split("</pre>")[0] for part in run(page()).split("<pre>")[1:])
    encoded = "".join(armored.split())
    assert parse_reply(base64.b64decode(encoded.removeprefix("0")).decode()) == Denied(End.OFFER_DENIED.reply)


@pytest.mark.parametrize(
    ("path", "body"),
    [("proxy", b"no JSON"), ("proxy", b'{"Sid":"x","Version":"2.0"}'), ("answer", b"{}"), ("client", b"x" * 100_001)],
)
def test_a_malformed_request_is_a_400_with_an_empty_body(deployed: Deployed, path: str, body: bytes) -> None:
    url = deployed.deployment.client_url if path == "client" else deployed.broker_url

    async def answered() -> tuple[int, bytes]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(url + path, data=body) as response,
        ):
            assert response.headers["Access-Control-Allow-Origin"] == "*"
            return response.status, await response.read()

    assert run(answered()) == (400, b"")


@pytest.mark.parametrize(
    "waiting",
    # A client gives up after five seconds, and a small machine's processors serve only so many by then.
    [
        4,
        pytest.param(10, marks=pytest.mark.slow),
        pytest.param(20, marks=pytest.mark.slow),
        pytest.param(50, marks=pytest.mark.slow),
        pytest.param(100, marks=pytest.mark.slow),
    ],
)
def test_twice_as_many_offers_as_proxies_take_each_proxy_once(deployed: Deployed, waiting: int) -> None:
    """Each client gets the answer of a proxy of its own, or hears why it has none, or its offer came too late.

    How many are answered is a matter of time: a poll that ends while the machine is busy takes no offer, and an offer
    that the broker receives after five seconds gets no reply.
    """
    answers, errors, stale = asyncio.run(asyncio.wait_for(offers_at_once(deployed, waiting), 240))
    assert answers
    assert set(answers) <= {answer(str(name)) for name in range(waiting)}
    assert len(set(answers)) == len(answers)
    assert len(answers) + len(errors) + stale >= 2 * waiting
    assert set(errors) <= {End.OFFER_DENIED.reply, End.OFFER_TIMED_OUT.reply}


async def offers_at_once(deployed: Deployed, waiting: int) -> tuple[list[str], list[str], int]:
    """Return the answers and the errors that the clients got, and the number of offers that came too late."""
    async with proxies_of(deployed) as proxies, asyncio.TaskGroup() as group:
        await nobody_waits(deployed)
        await start_environments(deployed, proxies, waiting)
        tasks = [group.create_task(serve_one_client(proxies, str(name))) for name in range(waiting)]
        await until_waiting(deployed, waiting)
        crowd = f"crowd-{secrets.token_hex(4)}-"  # another one's queues may still be there
        client_ids = [f"{crowd}{number:03d}" for number in range(2 * waiting)]
        stale_before = count_stale_offers(deployed.cloud)
        await asyncio.to_thread(send_offers, deployed, client_ids)

        def queues_of_crowd() -> list[str]:
            return [url.rpartition("/")[2] for url in queues_of_clients(deployed) if crowd in url]

        def count_stale() -> int:
            return count_stale_offers(deployed.cloud) - stale_before

        await until(lambda: len(queues_of_crowd()) + count_stale() >= len(client_ids))
        replies = [await asyncio.to_thread(read_reply, deployed, name) for name in queues_of_crowd()]
        for task in tasks:
            task.cancel()
    answers = [reply["answer"] for reply in replies if "answer" in reply]
    return answers, [reply["error"] for reply in replies if "error" in reply], count_stale()


async def start_environments(deployed: Deployed, proxies: Proxies, number: int) -> None:
    """Has that many execution environments of the proxy function; all cold at once, none would serve in time."""
    polling: list[asyncio.Task[None]] = []
    while len(polling) < number:
        most = len(polling)
        polling += [asyncio.create_task(proxies.serve()) for _ in range(AT_ONCE)]
        await until_waiting(deployed, most + 1)  # some are just between two polls
    for task in polling:
        task.cancel()
    await asyncio.gather(*polling, return_exceptions=True)
    await until_nobody_waits(deployed)


async def serve_one_client(proxies: Proxies, name: str) -> None:
    """Poll until an offer comes, as a proxy does, and answer it once. A poll that fails is made again."""
    while True:
        with suppress(CallFailed):
            polled = await proxies.poll()
            if polled.matched:
                break
        await asyncio.sleep(0.1)
    with suppress(CallFailed):  # then its client hears nothing in time
        await proxies.answer(polled.sid, answer(name))


def send_offers(deployed: Deployed, client_ids: list[str]) -> None:
    entries = [
        {
            "MessageBody": offer_body(client_id.rpartition("-")[2]),
            "MessageAttributes": {"ClientID": {"DataType": "String", "StringValue": client_id}},
        }
        for client_id in client_ids
    ]
    send_all(deployed.sqs, deployed.offers_queue_url, entries)


def read_reply(deployed: Deployed, name: str) -> dict[str, str]:
    # SQS lists a queue before it can be used.
    url = retry_until_accepted(lambda: deployed.sqs.get_queue_url(QueueName=name), passing=GONE)["QueueUrl"]
    messages: list[Any] = []
    while not messages:
        received = deployed.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20, MaxNumberOfMessages=10)
        messages = received.get("Messages", [])
    replies: list[dict[str, str]] = [json.loads(message["Body"]) for message in messages]
    # A client reads as soon as there is something: an answer before that there is no proxy, and that before a time-out.
    return min(replies, key=lambda reply: ("answer" not in reply, reply.get("error") != End.OFFER_DENIED.reply))
