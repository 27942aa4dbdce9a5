"""The polls that a deployed site holds, how many proxies wait in its pools, and the offers that came too late."""

import asyncio
import random
import re
import time
from collections.abc import Callable

from sluice.aws.rendezvous.offers import DynamoProxyPools
from sluice.local.cloud import Cloud
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import Pool
from tests.deployed import Deployed
from tests.waiting import growing_pauses

MOST = 1_000  # polls of one test, and more
STALE = re.compile(rf'"{End.OFFER_STALE}":\[([0-9.,]+)\]')  # in a metric as functions log it


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def list_pools(deployed: Deployed) -> DynamoProxyPools:
    return DynamoProxyPools(deployed.dynamodb, deployed.deployment.waiting_table_name, random.random)


def count(deployed: Deployed, pool: Pool = Pool.UNRESTRICTED) -> int:
    """How many proxies wait in a pool."""
    return len(list_pools(deployed).read_profiles(pool, now_ms=now_ms(), shards=1))


async def until(done: Callable[[], bool]) -> None:
    """Waits for what has no event to wait for. The test's own time limit ends it."""
    pauses = growing_pauses()
    while not await asyncio.to_thread(done):
        await asyncio.sleep(next(pauses))


async def until_waiting(deployed: Deployed, number: int = 1) -> None:
    """Waits until so many proxies wait for clients of any NAT, or more."""
    await until(lambda: count(deployed) >= number)


async def until_nobody_waits(deployed: Deployed) -> None:
    """Waits until all polls have ended, ten seconds after they began: the environments that held them are free then."""
    await until(lambda: not any(count(deployed, pool) for pool in Pool))


async def nobody_waits(deployed: Deployed) -> None:
    """Takes the polls of earlier tests out of their pools: nobody reads their replies, for which they wait 10 s."""
    await asyncio.to_thread(take_out, deployed)


def take_out(deployed: Deployed) -> None:
    """Takes all polls out of their pools, so that no offer is given to them."""
    pools = list_pools(deployed)
    for pool in Pool:
        for proxy in pools.read_waiting(pool, now_ms=now_ms(), limit=MOST, shards=1):
            pools.remove_proxy(proxy)


def count_stale_offers(cloud: Cloud) -> int:
    """Count the offers that brokers received after their clients had given up, from the metrics in the log."""
    counted = STALE.findall(cloud.server_log.read_text(errors="replace"))
    return int(sum(float(number) for numbers in counted for number in numbers.split(",")))
