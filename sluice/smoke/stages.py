"""Both throw-away stages: deployed by `sluice deploy`, counted, and taken away whole."""

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sluice.aws.clients import calls
from sluice.aws.operator.connections import Connection, environment_of, of_environment, of_user
from sluice.aws.operator.stage_contents import Left
from sluice.aws.operator.usage import OwnRequests, Usage
from sluice.costs.prices import Used
from sluice.errors import CallFailed, SluiceError
from sluice.local.cloud import BUILD, Cloud, clean_environment, start, tail
from sluice.local.deployer import UNATTENDED
from sluice.local.sites import DEFAULT_SITE, Site
from sluice.node import cdk
from sluice.project import PROJECT
from sluice.smoke.costs import bill
from sluice.smoke.runs import Bill, NotSo
from sluice.smoke.sites import SmokeSite, looks

FOLDER = BUILD / "smoke"
PIPELINE = "SluicePipeline", "ApplicationId"
ORDERS, PLAIN = "orders", "plain"  # bound queues: one that keeps order, one that doesn't
BOOTSTRAP = "/cdk-bootstrap/hnb659fds/version"  # https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-env.html
NO_BOOTSTRAP = "ParameterNotFound"
LEAST_BOOTSTRAP = 6  # whose roles CDK deploys with
DESTROY_TRIES = 2  # a job that ends may write into the bucket after it was emptied
UNLISTED_WITHIN_S = 90.0  # SQS lists a deleted queue for a minute
LOOK_EVERY_S = 5.0
END_WITHIN_S = 10.0
RANDOM_BYTES = 2
BUCKET = "AWS::S3::Bucket"
# Nothing is kept, and what the account has once isn't reserved.
PARAMETERS: Mapping[str, str] = {
    "sluice.log_retention_days": "1",
    "sluice.rendezvous.keep_state": "false",
    "sluice.rendezvous.proxy_max_concurrency": "null",
    "sluice.operations.budget_usd": "null",
    "sluice.federation.queues": f'[{{"name":"{ORDERS}","fifo":true}},{{"name":"{PLAIN}"}}]',
}
ON_CLOUD: Mapping[str, str] = {
    "sluice.architecture": "local",
    # This cloud's counts are right at once.
    "sluice.splitting.counts_settle_s": "0",
    "sluice.federation.counts_settle_s": "3",
}
WITHOUT_PIPELINE: Mapping[str, str] = {"sluice.pipeline.queue_id": "none", "sluice.splitting.queues": "[]"}


class CommandFailed(SluiceError):
    """`sluice deploy` or `sluice destroy` failed; the text has the end of what it said."""


@dataclass(slots=True)
class Stages:
    """Both stages: `here` with the pipeline, `there` without. `cloud` is the embedded one, where it isn't AWS."""

    here: SmokeSite
    there: SmokeSite
    cloud: Cloud | None
    own_requests: OwnRequests
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    _running: "set[subprocess.Popen[bytes]]" = field(default_factory=set)
    _is_over: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def on_aws(cls, *, region: str | None, profile: str | None) -> "Stages":
        """With new names, in the user's account. Raises `NoConnection`."""
        return cls._named(lambda stage: of_user(region=region, profile=profile, stage=stage), None)

    @classmethod
    def on_cloud(cls) -> "Stages":
        """With new names, on an embedded cloud of their own, bootstrapped. Raises `CloudFailed`, `CommandFailed`."""
        cloud = start(BUILD / "smoke-cloud", ends_with_us=True)
        made = cls._named(lambda stage: of_environment(cloud.environment(DEFAULT_SITE), stage=stage), cloud)
        for site in made.both:
            cloud = cloud.with_site(Site(DEFAULT_SITE.account, DEFAULT_SITE.region, site.stage))
        made.bootstrap()
        return made

    @classmethod
    def _named(cls, connect: Callable[[str], Connection], cloud: Cloud | None) -> "Stages":
        name = f"sm{secrets.token_hex(RANDOM_BYTES)}"
        here, there = connect(f"{name}a"), connect(f"{name}b")
        own_requests = OwnRequests()
        for each in (here, there):
            own_requests.count(each)
        return cls(SmokeSite(here), SmokeSite(there), cloud, own_requests)

    @property
    def both(self) -> tuple[SmokeSite, SmokeSite]:
        """All there are."""
        return self.here, self.there

    # What a run asks

    def ready(self) -> str:
        """Look at credentials, names, bootstrap and EMR Serverless. Raises `NotSo`, `CallFailed`."""
        connection = self.here.connection
        with calls("GetCallerIdentity"):
            account = connection.client("sts").get_caller_identity()["Account"]
        where = f"aws://{account}/{connection.region}"
        self.unused()
        try:
            with calls("GetParameter"):
                version = connection.client("ssm").get_parameter(Name=BOOTSTRAP)["Parameter"]["Value"]
        except CallFailed as error:
            if error.code != NO_BOOTSTRAP:
                raise
            raise NotSo(f"not bootstrapped: `cdk bootstrap {where}`") from None
        if int(version) < LEAST_BOOTSTRAP:
            raise NotSo(f"bootstrap has version {version}, older than {LEAST_BOOTSTRAP}: `cdk bootstrap {where}`")
        if self.cloud is None:
            with calls("ListApplications"):
                connection.client("emr-serverless").list_applications(maxResults=1)
        return f"{where}, bootstrap {version}"

    def unused(self) -> None:
        """See that nobody else has these names, as all that has goes at the end. Raises `NotSo`, `CallFailed`."""
        taken = [each.name for site in self.both for each in site.contents.left()]
        if taken:
            raise NotSo(f"these have the stages' names, and would be deleted: {', '.join(taken)}")

    def bootstrap(self) -> None:
        """Bootstrap an embedded cloud, as an account's owner does. Raises `CommandFailed`."""
        where = f"aws://{DEFAULT_SITE.account}/{DEFAULT_SITE.region}"
        self._run([str(cdk()), "bootstrap", where, "--no-notices"], self.here, "bootstrap")

    def deploy(self) -> str:
        """Deploy both, side by side. Raises `CommandFailed`."""
        self._at_both(lambda site: ["deploy", "--no-approve", *self._context(site)])
        return f"{self.here.stage} and {self.there.stage}"

    def bill(self) -> Bill:
        """Count what both have used by now, times the prices."""
        used: list[Used] = [{"sqs_standard": float(self.own_requests.number)}]
        now = datetime.now(UTC)
        used += [Usage(site.connection, self.since).until(now) for site in self.both]
        if self.cloud is None:
            used.append(Usage(self.here.connection, self.since).of_jobs(self.here.output(*PIPELINE)))
        return bill(used)

    def destroy(self) -> str:
        """End what is under way, empty the bucket, destroy both. Raises `NotSo` with what is left."""
        self._is_over.set()
        for process in list(self._running):
            _end(process)
        faults: list[str] = []
        buckets: list[str] = []
        with _noting(faults):
            buckets += self.here.contents.resources(BUCKET)
        for _ in range(DESTROY_TRIES):
            for bucket in buckets:
                with _noting(faults):
                    self.here.contents.empty_bucket(bucket)
            with _noting(faults):
                self._at_both(lambda site: ["destroy", "--force", *_all_queues(site), *self._context(site)])
                break
        for site in self.both:
            with _noting(faults):
                site.contents.delete_made_at_run_time()
        left = self._left(buckets)
        if left:
            raise NotSo("\n".join([*faults, "left:", *(f"  {each.kind} {each.name}: {each.remove}" for each in left)]))
        return "; ".join(["nothing is left", *faults])

    def _left(self, buckets: Sequence[str]) -> Sequence[Left]:
        left: Sequence[Left] = ()
        with suppress(NotSo):
            for _ in looks(UNLISTED_WITHIN_S, "all is gone", every_s=LOOK_EVERY_S):
                left = [*self.here.contents.left(buckets=buckets), *self.there.contents.left()]
                if not left:
                    break
        return left

    def removal(self) -> Sequence[str]:
        """Give the commands that take away what was kept."""
        region = self.here.connection.region
        return [
            *(f"aws s3 rm --recursive s3://{bucket}" for bucket in self.here.contents.resources(BUCKET)),
            *(f"sluice destroy --force --region {region} --stage {site.stage}" for site in self.both),
        ]

    # The command line

    def _context(self, site: SmokeSite) -> list[str]:
        parameters = {
            **PARAMETERS,
            "sluice.federation.peer_stages": f'["{self.here.stage}","{self.there.stage}"]',
            **({} if site is self.here else WITHOUT_PIPELINE),
            **(ON_CLOUD if self.cloud else {}),
        }
        return [f"--context={name}={value}" for name, value in parameters.items()]

    def _at_both(self, arguments: Callable[[SmokeSite], Sequence[str]]) -> None:
        """Run a command of `sluice` as its user would, at both sites side by side."""

        def at(site: SmokeSite) -> None:
            command, *options = arguments(site)
            program = [sys.executable, "-m", "sluice.cli.main", command, "--stage", site.stage]
            self._run([*program, *options], site, command)

        with ThreadPoolExecutor(2) as executor:
            list(executor.map(at, self.both))

    def _run(self, program: Sequence[str], site: SmokeSite, command: str) -> None:
        if command == "deploy" and self._is_over.is_set():
            raise CommandFailed("the run is over")
        base = clean_environment() if self.cloud else os.environ
        path = os.pathsep.join([str(Path(sys.executable).parent), base.get("PATH", "")])
        environment = {**environment_of(site.connection, base), "PATH": path, **UNATTENDED}
        log = FOLDER / f"{site.stage}-{command}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own arguments
                program,
                cwd=PROJECT.workspace,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that ctrl-C reaches only us, who then destroy
            )
            self._running.add(process)
            code = process.wait()
            self._running.discard(process)
        if code:
            raise CommandFailed(f"{command} of {site.stage}: exit code {code}; all of it is in {log}\n{tail(log)}")


def _all_queues(site: SmokeSite) -> list[str]:
    """All may go with what is in them: it is our own."""
    return [option for name in site.contents.queues() for option in ("--remove", name)]


@contextmanager
def _noting(faults: list[str]) -> Iterator[None]:
    """Note what goes wrong, and go on: what can be removed is removed."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - reported with what is left
        faults.append(f"{type(error).__name__}: {error}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a command and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_WITHIN_S)
            return
