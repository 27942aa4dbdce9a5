"""The embedded cloud with the stacks deployed, once for the session, and how many tests each suite ran."""

import fcntl
import gc
import json
import os
import socket
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import botocore.hooks
import botocore.session
import pytest
import typer.testing
from hypothesis import HealthCheck, settings

from sluice.building.project import PROJECT
from sluice.federation.bridge_provisioner import BRIDGE_QUEUE_PREFIX
from sluice.local.cloud import Cloud, start_cloud
from sluice.local.deployer import Deployer
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.origins import LOOPBACK
from sluice.local.sites import DEFAULT_SITE
from sluice.rendezvous.protocol.messages import DEFAULT_FINGERPRINT
from tests import mirrord
from tests.deployed import Deployed, redeliver_soon
from tests.repointed import REPOINTED
from tests.simulation.kernel.garbage import collect_seldom
from tests.timeouts import pytest_configure  # noqa: F401 - pytest finds it here

pytest_plugins = ["pytester"]

# Tests don't time things: other suites may have the processors.
# Of each property as many cases as Hypothesis takes by itself; `make test-unit` tries fewer, to be done sooner.
EXAMPLES = int(os.environ.get("SLUICE_EXAMPLES", "100"))
settings.register_profile("untimed", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# Each session of boto3's would read the services' models and rename its events anew, and each call of the command line
# build its parser: half of what the suites without a cloud had to do.
botocore.session.create_loader = cache(botocore.session.create_loader)
RENAMING: Any = botocore.hooks.EventAliaser  # of whose private parts the stubs say nothing
RENAMING._alias_event_name = staticmethod(cache(RENAMING(None)._alias_event_name))
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]  # as invoke calls it
collect_seldom()
# Of AWS's own delays: `make test` has no time for more, `make test-slow` says 1. Empty, the cloud is kind.
HARSH_SCALE = os.environ.get("SLUICE_HARSH_SCALE", "0.05")
# Routes would carry nothing for up to a minute, as `tests/unit/federation/test_registrar.py` expects.
EXCEPTED = f"{BRIDGE_QUEUE_PREFIX}.*"
# A failed message is overtaken by the next of its group: `tests/unit/test_batches.py` expects that.
OVERTAKEN = 0.0
HARSH = (
    Behaviours(scale=float(HARSH_SCALE), queues_there_at_once=EXCEPTED, fifo_entry_fails=OVERTAKEN)
    if HARSH_SCALE
    else None
)
OUTCOMES = Counter[tuple[str, str]]()
HELD_PROXIES = 100
FIRST_PORT, PORTS = 20_000, 10_000  # below those that the system gives by itself
SPLIT_QUEUES = [
    {"queue_id": "standard"},
    {"queue_id": "ordered", "fifo": True},
    {"queue_id": "notified", "sns": True, "sender_arns": ["arn:aws:sns:eu-central-1:000000000000:notices"]},
    {"queue_id": "traffic", "profile": "throughput"},  # the others have the default, latency
    {"queue_id": "landed"},
    *REPOINTED,
    *mirrord.queues(),
]
PIPELINE_QUEUE = "landed"  # whose main queue the pipeline reads


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """An embedded cloud of the tests' own, beside any that the user, or another run of tests, has up."""
    folder = tmp_path_factory.mktemp("cloud")
    running = start_cloud(folder, ends_with_us=True, harsh=HARSH, server="tests.harsh.refusing_cloud")
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def deployed(cloud: Cloud) -> Deployed:
    """All stacks, by `cdk deploy`, under enforced IAM; the relay is on loopback."""
    relay_port = usual_port()
    bridge = {
        "displayName": "loopback",
        "webSocketAddress": f"ws://{LOOPBACK}:{relay_port}/",
        "fingerprint": DEFAULT_FINGERPRINT,
    }
    parameters = {
        "sluice.rendezvous.bridges": json.dumps([bridge]),
        "sluice.rendezvous.allowed_relay_pattern": f"^{LOOPBACK}$",
        "sluice.rendezvous.held_proxies_min": HELD_PROXIES,
        "sluice.rendezvous.counters_window_s": 2,
        "sluice.rendezvous.keep_state": False,
        "sluice.splitting.queues": SPLIT_QUEUES,
        "sluice.splitting.counts_settle_s": 0,  # this cloud's counts are right at once
        "sluice.pipeline.queue_id": PIPELINE_QUEUE,
    }
    deployer = Deployer(cloud=cloud, context=parameters)
    synthesize_once(deployer)
    site = Deployed(deployer.deploy(DEFAULT_SITE), DEFAULT_SITE, relay_port)
    redeliver_soon(site.sqs)
    return site


def synthesize_once(deployer: Deployer) -> None:
    """Makes the assembly that is deployed. Of two suites that begin at once, the second one takes the first one's."""
    deployer.assemblies.mkdir(parents=True, exist_ok=True)
    with (deployer.assemblies / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        deployer.assembly()


def usual_port() -> int:
    """A port that nobody listens on now: of one clone mostly the same, as other parameters mean another synth."""
    usual = FIRST_PORT + zlib.crc32(str(PROJECT.build).encode()) % PORTS
    for port in (usual, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return int(probe.getsockname()[1])
    raise AssertionError("no port is free")


def pytest_collection_finish() -> None:
    """Has the collector pass over what is there for good: modules, and the tests themselves."""
    if "moto" in sys.modules:
        receive_without_waiting()
    gc.collect()
    gc.freeze()


def receive_without_waiting() -> None:
    """Makes receives from moto's queues answer at once, with the messages that are there.

    A long poll of moto's looks at the clock before it looks at the queue: a process that waits for a processor for
    as long as the poll may take gets no message from a queue that has some.
    """
    from moto.sqs.models import SQSBackend  # noqa: PLC0415 - suites without moto don't import it

    receive: Any = SQSBackend.receive_message

    def receive_now(self: Any, queue_name: str, count: int, wait_seconds_timeout: int, *more: Any, **named: Any) -> Any:
        return receive(self, queue_name, count, 0, *more, **named)

    SQSBackend.receive_message = receive_now  # type: ignore[method-assign]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Counts an outcome once: of its call, or of the setup that skipped it or failed."""
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        OUTCOMES[report.nodeid.split("/")[1], report.outcome] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many of each."""
    terminalreporter.section("tests by suite")
    for suite in sorted({suite for suite, _ in OUTCOMES}):
        counts = [f"{number} {outcome}" for (of, outcome), number in sorted(OUTCOMES.items()) if of == suite]
        terminalreporter.line(f"{suite:12} {', '.join(counts)}")
