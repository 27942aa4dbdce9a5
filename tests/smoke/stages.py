"""Two throw-away stages: deployed by `sluice deploy`, counted, and taken away whole."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from benchmarks.prices import MONTH_H, POLL_S, Used, price_list, together
from benchmarks.site_templates import POLLERS
from sluice.aws.clients import calls
from sluice.aws.connections import Connection, build_environment, connect_environment, connect_user, fetch_account
from sluice.aws.deployment import Deployment, read_deployment, read_stack_outputs
from sluice.aws.rendezvous.clients import ClientCredentials, ClientUser, open_client, rotate_keys
from sluice.building.interpreters import cdk
from sluice.building.project import PROJECT
from sluice.errors import BadConfiguration, CallFailed, SluiceError
from sluice.local.cloud import BUILD, Cloud, clean_environment, start_cloud, tail
from sluice.local.deployer import UNATTENDED
from sluice.local.sites import DEFAULT_SITE, Site
from sluice.operator.queues import find_queue_url
from tests.deployed import UNKNOWN_KEY, settled
from tests.e2e.federated import Federation
from tests.smoke.stage_contents import Left, StageContents
from tests.smoke.usage import OwnRequests, Usage

FOLDER = BUILD / "smoke"
RUN_WITHIN_S = 45 * 60  # `make smoke` ends the session after that; the stages are destroyed whatever is under way
PIPELINE = "SluicePipeline"
QUEUE = "pipeline"  # the queue that is split, whose main queue the pipeline reads
ORDERS, PLAIN = "orders", "plain"  # bound queues: one that keeps order, one that doesn't
BOOTSTRAP = "/cdk-bootstrap/hnb659fds/version"  # https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-env.html
NO_BOOTSTRAP = "ParameterNotFound"
LEAST_BOOTSTRAP = 6  # whose roles CDK deploys with
DESTROY_TRIES = 2  # a job that ends may write into the bucket after it was emptied
UNLISTED_WITHIN_S = 90.0  # SQS lists a deleted queue for a minute
LOOK_EVERY_S = 1.0
END_WITHIN_S = 10.0
RANDOM_BYTES = 2
BUCKET = "AWS::S3::Bucket"
# Nothing is kept.
PARAMETERS: Mapping[str, str] = {
    "sluice.log_retention_days": "1",
    "sluice.rendezvous.keep_state": "false",
    "sluice.operations.budget_usd": "null",
    "sluice.federation.queues": f'[{{"name":"{ORDERS}","fifo":true}},{{"name":"{PLAIN}"}}]',
}
ON_CLOUD: Mapping[str, str] = {
    "sluice.architecture": "local",
    # This cloud's counts are right at once.
    "sluice.splitting.counts_settle_s": "0",
    "sluice.federation.counts_settle_s": "3",
}
# As they are deployed side by side, only the other stage reserves concurrent executions.
LESSER: Mapping[str, str] = {
    "sluice.pipeline.queue_id": "none",
    "sluice.splitting.queues": "[]",
    "sluice.rendezvous.proxy_max_concurrency": "null",
}
# A second deployment changes triggers that are in use.
CHANGED: Mapping[str, str] = {
    "sluice.splitting.max_concurrency": "5",
    "sluice.splitting.batch_size": "5",
    "sluice.federation.max_concurrency": "5",
    "sluice.federation.profile": "throughput",
    "sluice.federation.batch_size": "50",
}
# By a run's limits, and by twice of what it is expected to do: both stages' fifteen triggers and thirty alarms as long
# as a run may take; a driver and four executors, which take some minutes to start and end, for a quarter of an hour;
# two endpoints, for whom a part of an hour is a whole one.
STAGES = 2
MOST: Used = {
    "sqs_standard": STAGES * 15 * RUN_WITHIN_S * POLLERS / POLL_S + 20_000,
    "lambda_gb_s": 4_000.0,
    "lambda_calls": 10_000.0,
    "dynamodb_writes": 20_000.0,
    "dynamodb_reads": 50_000.0,
    "emr_vcpu_hours": 5 * 0.25,
    "emr_gb_hours": 5 * 0.25 * 4,
    "endpoint_hours": 2 * 2.0,
    "alarm_metrics": STAGES * 30 * RUN_WITHIN_S / 3600 / MONTH_H,
    "logs_gb": 0.1,
    "s3_puts": 2_000.0,
}

T = TypeVar("T")


class NotReady(BadConfiguration):
    """The account lacks something that the stages need, or has something in their place."""


class CommandFailed(SluiceError):
    """A command failed; the text has the end of what it printed."""


class SomethingIsLeft(SluiceError):
    """The stages were destroyed and this is still there; the text has the commands that remove it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What was used, a line each, and what it costs."""

    usd: float
    lines: Sequence[str]

    @classmethod
    def of(cls, parts: Iterable[Used]) -> "Bill":
        """Multiply quantities by their prices."""
        prices, used = price_list(), together(*parts)
        lines = [
            f"{quantity:,.3f} {prices.prices[name].unit}: ${prices.usd({name: quantity}):.4f}"
            for name, quantity in used.items()
            if quantity
        ]
        return cls(usd=prices.usd(used), lines=lines)


def estimate_usd() -> float:
    """Dollars that a run may cost at most."""
    return price_list().usd(MOST)


def until(look: Callable[[], T | None], what: str, *, within_s: float, every_s: float = LOOK_EVERY_S) -> T:
    """Look again and again until there is something. Fails the test with `what` after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(every_s)
    return seen


class SmokeSite(Federation):
    """One of the stages, as its owner and as a client see it. What doesn't change is asked for once."""

    @property
    def stage(self) -> str:
        return self.connection.stage or ""

    @property
    def contents(self) -> StageContents:
        """What has its name."""
        return StageContents(self.connection)

    @cached_property
    def deployment(self) -> Deployment:
        return read_deployment(self.connection)

    @cached_property
    def credentials(self) -> ClientCredentials:
        """A new access key for clients, once it acts: IAM tells SQS of it some seconds later."""
        clients = ClientUser(self.connection.client("iam"), self.deployment.client_user_name)
        credentials = rotate_keys(clients, keep_previous=False).credentials
        client = open_client(credentials, region=self.connection.region, endpoint_url=self.connection.endpoint_url)
        settled(lambda: client.get_queue_url(QueueName="any"), passing=UNKNOWN_KEY)
        return credentials

    def url(self, name: str) -> str:
        """A queue's by its name in the parameters."""
        return find_queue_url(self.connection, name)

    def output(self, stack: str, name: str) -> str:
        return read_stack_outputs(self.connection, stack)[name]


@dataclass(slots=True)
class Stages:
    """Both stages: `here` with the pipeline, `there` without. `cloud` is the embedded one, where it isn't AWS."""

    here: SmokeSite
    there: SmokeSite
    cloud: Cloud | None
    own_requests: OwnRequests
    since: datetime = field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def on_aws(cls, *, region: str | None, profile: str | None) -> "Stages":
        """With new names, in the user's account. Raises `NoConnection`."""
        return cls._named(lambda stage: connect_user(region=region, profile=profile, stage=stage), None)

    @classmethod
    def on_cloud(cls) -> "Stages":
        """With new names, on an embedded cloud of their own, bootstrapped. Raises `CloudFailed`, `CommandFailed`."""
        cloud = start_cloud(BUILD / "smoke-cloud", ends_with_us=True)
        made = cls._named(lambda stage: connect_environment(cloud.environment(DEFAULT_SITE), stage=stage), cloud)
        for site in made.both:
            cloud = cloud.with_site(Site(DEFAULT_SITE.account, DEFAULT_SITE.region, site.stage))
        where = f"aws://{DEFAULT_SITE.account}/{DEFAULT_SITE.region}"
        made._run("bootstrap", {made.here: [str(cdk()), "bootstrap", where, "--no-notices"]})
        return made

    @classmethod
    def _named(cls, connect: Callable[[str], Connection], cloud: Cloud | None) -> "Stages":
        name = f"sm{secrets.token_hex(RANDOM_BYTES)}"
        here, there = connect(f"{name}a"), connect(f"{name}b")
        own_requests = OwnRequests()
        for connection in (here, there):
            own_requests.count(connection)
        return cls(SmokeSite(here), SmokeSite(there), cloud, own_requests)

    @property
    def both(self) -> tuple[SmokeSite, SmokeSite]:
        return self.here, self.there

    def check_account(self) -> str:
        """Look at credentials, names, bootstrap and EMR Serverless. Raises `NotReady`, `CallFailed`."""
        connection = self.here.connection
        where = f"aws://{fetch_account(connection)}/{connection.region}"
        self.check_names()
        try:
            with calls("GetParameter"):
                version = connection.client("ssm").get_parameter(Name=BOOTSTRAP)["Parameter"]["Value"]
        except CallFailed as error:
            if error.code != NO_BOOTSTRAP:
                raise
            raise NotReady(f"not bootstrapped: `cdk bootstrap {where}`") from None
        if int(version) < LEAST_BOOTSTRAP:
            raise NotReady(f"bootstrap has version {version}, older than {LEAST_BOOTSTRAP}: `cdk bootstrap {where}`")
        if self.cloud is None:
            with calls("ListApplications"):
                connection.client("emr-serverless").list_applications(maxResults=1)
        return f"{where}, bootstrap {version}"

    def check_names(self) -> None:
        """See that nobody else has these names, as all that has goes at the end. Raises `NotReady`, `CallFailed`."""
        taken = [left.name for site in self.both for left in site.contents.left()]
        if taken:
            raise NotReady(f"these have the stages' names, and would be deleted: {', '.join(taken)}")

    def deploy(self) -> None:
        """Deploy both, side by side, with the defaults and then with changed triggers. Raises `CommandFailed`."""
        for changed in ({}, CHANGED):
            contexts = {site: ["--no-approve", *self._context(site, changed)] for site in self.both}
            self._sluice("deploy", contexts.__getitem__)

    def bill(self) -> Bill:
        """Count what both have used by now, times the prices."""
        used: list[Used] = [{"sqs_standard": float(self.own_requests.number)}]
        now = datetime.now(UTC)
        used += [Usage(site.connection, self.since).until(now) for site in self.both]
        if self.cloud is None:
            application_id = self.here.output(PIPELINE, "ApplicationId")
            used.append(Usage(self.here.connection, self.since).of_jobs(application_id))
        return Bill.of(used)

    def destroy(self) -> str:
        """Empty the bucket, destroy both. Raises `SomethingIsLeft`."""
        faults: list[str] = []
        buckets: list[str] = []
        with _noting(faults):
            buckets += self.here.contents.resources(BUCKET)
        for _ in range(DESTROY_TRIES):
            for bucket in buckets:
                with _noting(faults):
                    self.here.contents.empty_bucket(bucket)
            with _noting(faults):
                # Every queue may go with what is in it: the messages are our own.
                self._sluice(
                    "destroy",
                    lambda site: [
                        "--force",
                        *(option for name in site.contents.queues() for option in ("--remove", name)),
                        *self._context(site),
                    ],
                )
                break
        for site in self.both:
            with _noting(faults):
                site.contents.delete_made_at_run_time()
        left = self._left(buckets)
        if left:
            listed = [f"  {each.kind} {each.name}: {each.remove}" for each in left]
            raise SomethingIsLeft("\n".join([*faults, "left:", *listed]))
        return "; ".join(["nothing is left", *faults])

    def _left(self, buckets: Sequence[str]) -> Sequence[Left]:
        deadline = time.monotonic() + UNLISTED_WITHIN_S
        while left := [*self.here.contents.left(buckets=buckets), *self.there.contents.left()]:
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_EVERY_S)
        return left

    def removal(self) -> Sequence[str]:
        """Give the commands that take away what was kept."""
        region = self.here.connection.region
        return [
            *(f"aws s3 rm --recursive s3://{bucket}" for bucket in self.here.contents.resources(BUCKET)),
            *(f"sluice destroy --force --region {region} --stage {site.stage}" for site in self.both),
        ]

    # The command line

    def _context(self, site: SmokeSite, changed: Mapping[str, str] = CHANGED) -> list[str]:
        parameters = {
            **PARAMETERS,
            "sluice.federation.peer_stages": f'["{self.here.stage}","{self.there.stage}"]',
            **changed,
            **({} if site is self.here else LESSER),
            **(ON_CLOUD if self.cloud else {}),
        }
        return [f"--context={name}={value}" for name, value in parameters.items()]

    def _sluice(self, command: str, options: Callable[[SmokeSite], Sequence[str]]) -> None:
        """Run a command of `sluice` as its user would, at both sites side by side. Raises `CommandFailed`."""
        program = [sys.executable, "-m", "sluice.cli.main", command, "--stage"]
        self._run(command, {site: [*program, site.stage, *options(site)] for site in self.both})

    def _run(self, command: str, programs: Mapping[SmokeSite, Sequence[str]]) -> None:
        """Run a program for each of the sites; whatever ends the wait ends them too. Raises `CommandFailed`."""
        logs = {site: FOLDER / f"{site.stage}-{command}.log" for site in programs}
        processes = {site: self._start(program, site, logs[site]) for site, program in programs.items()}
        try:
            codes = {site: process.wait(RUN_WITHIN_S) for site, process in processes.items()}
        finally:
            for process in processes.values():
                _end(process)
        failed = [
            f"{command} of {site.stage}: exit code {code}; all of it is in {logs[site]}\n{tail(logs[site])}"
            for site, code in codes.items()
            if code
        ]
        if failed:
            raise CommandFailed("\n".join(failed))

    def _start(self, program: Sequence[str], site: SmokeSite, log: Path) -> "subprocess.Popen[bytes]":
        base = clean_environment() if self.cloud else os.environ
        path = os.pathsep.join([str(Path(sys.executable).parent), base.get("PATH", "")])
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            return subprocess.Popen(
                program,
                cwd=PROJECT.workspace,
                env={**build_environment(site.connection, base), "PATH": path, **UNATTENDED},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that ctrl-C reaches only us, who then destroy
            )


@contextmanager
def _noting(faults: list[str]) -> Iterator[None]:
    """Note what goes wrong, and go on: what can be removed is removed."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - reported with what is left
        faults.append(f"{type(error).__name__}: {error}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a command that still runs, and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_WITHIN_S)
