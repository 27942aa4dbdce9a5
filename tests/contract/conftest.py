"""Contracts are kept on moto, whose transactions cost what they are worth, and on API servers of Kubernetes."""

from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.real_server import real
from tests.kubernetes.servers import Server, in_memory
from tests.kubernetes.workloads import made
from tests.long_polls import shorten_long_polls
from tests.transactions import copy_tables_once

copy_tables_once()
shorten_long_polls()


@pytest.fixture(scope="session", params=["memory", pytest.param("real", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with in_memory() if request.param == "memory" else real() as found:
        yield found


@pytest.fixture
def cluster(server: Server) -> Cluster:
    return made(server)
