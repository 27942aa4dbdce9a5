"""The real programs, once for the session, and what they need around them, anew for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployed import Deployed
from tests.interop.programs import FetchFailed, Programs, fetch
from tests.interop.servers import Servers

CACHE = Path(__file__).parents[2] / "build" / "interop"


@pytest.fixture(scope="session")
def programs() -> Programs:
    """The real client and proxy. Skips where they can't be downloaded."""
    try:
        return fetch(CACHE)
    except FetchFailed as error:
        pytest.skip(f"the real snowflake-client and snowflake-proxy can't be downloaded: {error}")


@pytest.fixture
def servers(deployed: Deployed) -> Iterator[Servers]:
    """STUN, NAT probe, AMP cache, relay and slow line; the relay where the deployed bridge list has it."""
    with Servers(deployed.relay_port, deployed.deployment.client_url, deployed.endpoint) as running:
        yield running
