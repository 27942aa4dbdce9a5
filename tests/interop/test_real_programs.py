"""Tor's own client and proxy against the deployed site, with each other and with ours, in real time."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest

from sluice.aws.rendezvous.clients import ClientCredentials, ClientQueues, open_client
from sluice.peers.channels import Network
from sluice.peers.client import Connected, connect
from sluice.peers.methods import exchange_over_sqs
from sluice.peers.volunteer import Volunteer, VolunteerLimits, VolunteerStep
from sluice.rendezvous.protocol.matching import Nat
from tests.deployed import Deployed
from tests.interop.programs import Programs, Running, RunningClient, start_client, start_proxy
from tests.interop.relay import Relay
from tests.interop.servers import Servers
from tests.polls import take_out, until_waiting
from tests.traffic import Proxies

# A client that meets the poll of a proxy that is gone, another test's, hears of it after 25 s and comes again after 10.
WITHIN_S = 120
ATTEMPTS = 4
STREAM_BEGINS = bytes.fromhex("1293605d278175f5")  # what the real client sends first: Turbo Tunnel's token
ON_LOOPBACK = Network(loopback=True)

StartClient = Callable[..., RunningClient]


METHODS = ("sqs", "http", "ampcache")


@pytest.fixture(autouse=True)
def nobody_waits(deployed: Deployed) -> None:
    """No poll of an earlier test's proxies waits, to which offers would be lost."""
    take_out(deployed)


@pytest.fixture
def start_real_client(
    deployed: Deployed, programs: Programs, servers: Servers, tmp_path: Path
) -> Iterator[StartClient]:
    """Starts the real client, which begins a rendezvous at once; over SQS unless told otherwise."""
    methods = {
        "sqs": ["-sqsqueue", aws_queue_url(deployed), "-sqscreds", deployed.client_sqscreds],
        "http": ["-url", deployed.deployment.client_url],
        "ampcache": [
            "-url",
            "https://broker.test/",
            "-ampcache",
            "http://cache.test/",
            "-fronts",
            servers.cache_address,
        ],
    }
    with ExitStack() as running:
        yield lambda method="sqs", *, sqs_endpoint=deployed.endpoint: running.enter_context(
            start_client(
                programs.client,
                tmp_path / f"client-{method}",
                sqs_endpoint=sqs_endpoint,
                method=methods[method],
                stun_url=servers.stun_url,
            )
        )


@pytest.fixture
def real_proxy(deployed: Deployed, programs: Programs, servers: Servers, tmp_path: Path) -> Iterator[Running]:
    """The real proxy, its NAT found unrestricted: without a NAT its client's is unknown, and gets no other."""
    with start_proxy(
        programs.proxy,
        tmp_path / "proxy",
        broker_url=deployed.broker_url,
        probe_url=servers.probe_url,
        stun_url=servers.stun_url,
    ) as proxy:
        proxy.waits_for("NAT type: unrestricted", within_s=WITHIN_S)
        yield proxy


def aws_queue_url(deployed: Deployed) -> str:
    """The offers queue's URL in the form that the real client takes the region from."""
    queue = deployed.offers_queue_url.rsplit("/", 1)[1]
    return f"https://sqs.{deployed.region}.amazonaws.com/{deployed.account}/{queue}"


def test_clients_without_proxies_are_told_so_by_every_method(start_real_client: StartClient) -> None:
    for client in [start_real_client(method) for method in METHODS]:
        client.waits_for("no snowflake proxies currently available", within_s=WITHIN_S)


def test_clients_whose_proxies_never_answer_are_told_so_by_every_method(
    deployed: Deployed, start_real_client: StartClient
) -> None:
    def until_told() -> None:
        for client in [start_real_client(method) for method in METHODS]:
            client.waits_for("timed out waiting for answer!", within_s=WITHIN_S)

    asyncio.run(silent_while(deployed, until_told))


async def silent_while(deployed: Deployed, work: Callable[[], None]) -> None:
    """Has proxies poll meanwhile that answer nobody."""
    async with aiohttp.ClientSession() as session:
        proxies = Proxies(session, deployed.broker_url)

        async def silent() -> None:
            while True:
                await proxies.poll()

        polling = [asyncio.create_task(silent()) for _ in METHODS]
        await until_waiting(deployed, len(METHODS))
        try:
            await asyncio.to_thread(work)
        finally:
            for task in polling:
                task.cancel()
            await asyncio.gather(*polling, return_exceptions=True)


@pytest.mark.parametrize("method", METHODS)
def test_the_real_client_gets_the_real_proxys_answer_and_its_bytes_reach_the_relay(
    start_real_client: StartClient, real_proxy: Running, servers: Servers, method: str
) -> None:
    client = start_real_client(method)
    answer = json.loads(client.waits_for(r'Received answer: (\{"answer".*\})', within_s=WITHIN_S)[1])["answer"]
    assert ice_password(json.loads(answer)["sdp"]) in real_proxy.logged()
    client.waits_for("DataChannel.OnOpen", within_s=WITHIN_S)
    real_proxy.waits_for("Connected to relay", within_s=WITHIN_S)
    servers.relay_received(STREAM_BEGINS, within_s=WITHIN_S)


@pytest.mark.parametrize(
    "delay_s", [0.5, 2, *(pytest.param(delay_s, marks=pytest.mark.slow) for delay_s in (1, 3, 4, 5))]
)
def test_the_real_client_on_a_slow_line_gets_its_answer(
    start_real_client: StartClient, real_proxy: Running, servers: Servers, delay_s: float
) -> None:
    """Each of its requests to SQS takes that long, so it reads its queue after one second and two delays."""
    servers.slow_line.delay_s = delay_s
    client = start_real_client(sqs_endpoint=servers.slow_sqs_url)
    client.waits_for(r'Received answer: \{"answer"', within_s=WITHIN_S)
    # An offer may come while the proxy doesn't poll, or meet the poll of a proxy that is gone; then the client tries
    # again. But the client missed no answer of this proxy.
    assert real_proxy.logged().count("Received Offer From Broker") == 1


def test_our_client_gets_the_real_proxy_and_its_bytes_come_back_from_the_relay(
    deployed: Deployed, real_proxy: Running, servers: Servers
) -> None:
    assert asyncio.run(asyncio.wait_for(echoed_by_relay(deployed, b"ours to theirs"), WITHIN_S)) == b"ours to theirs"
    real_proxy.waits_for("Connected to relay", within_s=WITHIN_S)


async def echoed_by_relay(deployed: Deployed, data: bytes) -> bytes:
    """What comes back through the first proxy that lets a channel be opened."""
    credentials = ClientCredentials.parse(deployed.client_sqscreds)
    client = open_client(credentials, region=deployed.region, endpoint_url=deployed.endpoint)
    async with ClientQueues(client, deployed.offers_queue_url) as queues:
        for _ in range(ATTEMPTS):
            outcome = await connect(exchange_over_sqs(queues), network=ON_LOOPBACK)
            if isinstance(outcome, Connected):
                async with outcome.peer:
                    await outcome.channel.send(data)
                    return await outcome.channel.receive_exactly(len(data))
    raise AssertionError(outcome)


def test_the_real_client_gets_our_proxy_and_its_bytes_reach_the_relay(
    deployed: Deployed, start_real_client: StartClient, servers: Servers
) -> None:
    def until_bytes_came() -> None:
        start_real_client().waits_for("DataChannel.OnOpen", within_s=WITHIN_S)
        servers.relay_received(STREAM_BEGINS, within_s=WITHIN_S)

    assert asyncio.run(serve_while(deployed, until_bytes_came))[VolunteerStep.OPENED] == 1


async def serve_while(deployed: Deployed, work: Callable[[], None]) -> Counter[VolunteerStep]:
    """What happened to our proxy while that was done."""
    async with aiohttp.ClientSession() as session:
        volunteer = Volunteer(
            session,
            deployed.broker_url,
            network=ON_LOOPBACK,
            nat=Nat.UNRESTRICTED,
            limits=VolunteerLimits(pause_s=0),
            serve=Relay(session),
        )
        serving = asyncio.create_task(volunteer.run())
        try:
            await asyncio.to_thread(work)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        return volunteer.counts


def ice_password(sdp: str) -> str:
    return next(line for line in sdp.splitlines() if line.startswith("a=ice-pwd:"))
