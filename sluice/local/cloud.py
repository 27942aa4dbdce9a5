"""One embedded cloud: its process, the folder with its state and logs, and how programs reach it."""

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sluice.building.project import PROJECT, require_modules
from sluice.errors import SluiceError
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.origins import LOOPBACK
from sluice.local.processes import end_session, is_running
from sluice.local.runtime import install_lambda_python, runtime_python
from sluice.local.sites import Site

SERVER, REQUEST_LOG = "sluice.local.server", "requests.jsonl"
READY_TIMEOUT_S = 180
STOP_TIMEOUT_S = 10
# The cloud listens in this range. Linux, macOS and the BSDs give outgoing connections higher ports.
PORTS = range(20_000, 32_000)
# Seconds until a stopped cloud is killed. If it hasn't saved its state, it loses all changes since its start.
SAVE_TIMEOUT_S = 120
POLL_S = 0.05
SECRET_BYTES = 30
LOG_TAIL_LINES = 20
# Each poll of a proxy (see the glossary) occupies a server thread for up to ten seconds.
SERVER_THREADS = 512

BUILD = PROJECT.build
# The default folder of a cloud, which the command line uses. Clouds that run at the same time need different folders.
FOLDER = Path(os.environ.get("SLUICE_LOCAL_FOLDER") or BUILD / "local")
# Files in a cloud's folder. Stopping the cloud deletes only cloud.json.
FILE, LAST_SITES, LAST_DEPLOYED, LAST_PORT, STATE = "cloud.json", "sites.json", "deployed.json", "port", "state"


class CloudFailed(SluiceError):
    """The embedded cloud doesn't start or isn't running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """A running embedded cloud. `sites` are the deployed sites, in the order of their deployment.

    `deployed` has a record for each site, by which the deployer decides whether a deployment is due. `harsh` has the
    delays and faults of AWS to imitate; None imitates none. If `keeps_state` is set, the cloud saves its state when it
    is stopped. `secret` is the secret access key of every account's root, drawn at each start.
    """

    pid: int
    endpoint: str
    folder: Path
    secret: str = field(repr=False)
    sites: tuple[Site, ...] = ()
    deployed: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    harsh: Behaviours | None = None
    keeps_state: bool = False

    @property
    def server_log(self) -> Path:
        """The path of the log of the server and the functions."""
        return self.folder / "server.log"

    @property
    def request_log(self) -> Path:
        """The path of the log of all SQS requests, which `sluice.local.requests` writes."""
        return self.folder / REQUEST_LOG

    def environment(self, site: Site) -> dict[str, str]:
        """Return environment variables by which programs act as root user of the site's account, in this cloud only."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": site.account,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": site.region,
            "AWS_DEFAULT_REGION": site.region,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def with_site(self, site: Site, deployed: Mapping[str, str] | None = None) -> "Cloud":
        """Record a deployment to `site` in the cloud's file, and return a `Cloud` that includes the deployment."""
        sites = (*(known for known in self.sites if known != site), site)
        cloud = replace(self, sites=sites, deployed={**self.deployed, str(site): deployed or {}})
        _write(cloud)
        return cloud

    def is_running(self) -> bool:
        """Return whether the cloud's process runs and answers requests."""
        if not _is_process_running(self.pid):
            return False
        try:
            with urllib.request.urlopen(f"{self.endpoint}/_ministack/ready", timeout=5) as response:  # noqa: S310 - loopback
                return bool(response.status == 200)  # noqa: PLR2004 - HTTP's own number
        except OSError:
            return False

    def stop(self) -> None:
        """Stop the server and its functions, which belong to the server's process session.

        A cloud that keeps its state gets time to save the state. Any other cloud is killed at once.
        """
        if self.keeps_state:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                _wait(lambda: not _is_process_running(self.pid), lambda: True, SAVE_TIMEOUT_S)
        # Functions, even frozen ones, can outlive a server that has ended already.
        end_session(self.pid)
        with contextlib.suppress(TimeoutError):
            _wait(lambda: not _is_process_running(self.pid), lambda: True, STOP_TIMEOUT_S)
        (self.folder / FILE).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)


def start_cloud(
    folder: Path = FOLDER,
    *,
    keep_state: bool = False,
    save_state: bool = False,
    ends_with_us: bool = False,
    harsh: Behaviours | None = None,
    server: str = SERVER,
) -> Cloud:
    """Start a cloud on a free port and wait until it answers.

    Both `keep_state` and `save_state` save the state when the cloud is stopped. `keep_state` also restores the last
    saved state, at the old port if that is free, because queues' URLs contain the port; `describe_lost_state` says what
    can't be restored. With `ends_with_us` the cloud ends with this process, even if that is killed. `harsh` are
    behaviours of AWS to imitate. `server` is the module to run; another module can add patches and call SERVER's
    `main`.

    Raises `CloudFailed` with the end of the log if the cloud doesn't start, or if one runs already.
    """
    running = find_cloud(folder)
    if running:
        raise CloudFailed(f"a cloud runs already: process {running.pid} at {running.endpoint}")
    require_modules("local", "ministack", "aws_cdk")
    install_lambda_python()
    python = runtime_python(BUILD, PROJECT.lock_file)
    sites, deployed = tuple[Site, ...](), dict[str, Mapping[str, str]]()
    if not keep_state:
        shutil.rmtree(folder, ignore_errors=True)
    elif _has_state(folder) and (folder / LAST_SITES).exists():
        sites = tuple(Site(**site) for site in json.loads((folder / LAST_SITES).read_text()))
        with contextlib.suppress(FileNotFoundError):
            deployed = json.loads((folder / LAST_DEPLOYED).read_text())
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # The folder contains the secret and issued keys.
    cloud = Cloud(
        pid=0,
        endpoint=f"http://{LOOPBACK}:{_find_free_port(folder)}",
        folder=folder,
        secret=secrets.token_urlsafe(SECRET_BYTES),
        sites=sites,
        deployed=deployed,
        harsh=harsh,
        keeps_state=keep_state or save_state,
    )
    cloud = replace(cloud, pid=_spawn(cloud, python, server, ends_with_us=ends_with_us))
    try:
        _write(cloud)
        _wait(cloud.is_running, lambda: _is_process_running(cloud.pid), READY_TIMEOUT_S)
    except KeyboardInterrupt:
        cloud.stop()
        raise
    except TimeoutError:
        cloud.stop()
        raise CloudFailed(f"the embedded cloud didn't start\n{tail(cloud.server_log)}") from None
    return cloud


def describe_lost_state(folder: Path = FOLDER) -> str | None:
    """Describe which state of this folder's last cloud can't be restored, or return None if all of it can."""
    if (folder / FILE).exists():  # Stopping a cloud deletes this file.
        rest = "the state saved before that is restored" if _has_state(folder) else "nothing is restored"
        return f"the last cloud was not stopped by `sluice local down` and saved nothing: {rest}"
    if not _has_state(folder):
        return "there is no saved state: the cloud starts empty, and `sluice local down` saves it"
    return None


def _has_state(folder: Path) -> bool:
    return (folder / STATE).is_dir() and any((folder / STATE).iterdir())


def find_cloud(folder: Path = FOLDER) -> Cloud | None:
    """Find the running cloud of this folder, or None."""
    try:
        fields = json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        return None
    cloud = Cloud(
        pid=fields["pid"],
        endpoint=fields["endpoint"],
        folder=folder,
        secret=fields.get("secret", ""),
        sites=tuple(Site(**site) for site in fields["sites"]),
        deployed=fields.get("deployed", {}),
        harsh=Behaviours.parse(fields["harsh"]) if fields.get("harsh") else None,
        keeps_state=bool(fields.get("keeps_state")),
    )
    return cloud if cloud.is_running() else None


def require_running(cloud: Cloud | None) -> Cloud:
    """Return the running cloud. Raises `CloudFailed` if there is none."""
    if cloud is None:
        raise CloudFailed("the embedded cloud isn't running: start it with `sluice local up`")
    return cloud


def tail(log: Path) -> str:
    """Return the last lines of a log file."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-LOG_TAIL_LINES:])


def clean_environment() -> dict[str, str]:
    """Return the environment variables without those that could lead a program to a real AWS account."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}


def _find_free_port(folder: Path) -> int:
    """Return the port of this folder's last cloud, or a free port if the last port is taken.

    The server binds the port a second later. The operating system gives outgoing connections ports of a higher range,
    so no connection takes the port in between.
    """
    last = folder / LAST_PORT
    ports = random.sample(PORTS, 100)
    for port in (int(last.read_text()), *ports) if last.exists() else ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            # The server sets this option, too: connections in state TIME_WAIT don't make a port unusable.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return port
    raise CloudFailed(
        f"none of the tried ports {PORTS.start} to {PORTS.stop - 1} is free: stop other clouds or servers"
    )


def _spawn(cloud: Cloud, python: Path, server: str, *, ends_with_us: bool) -> int:
    parent = [str(os.getpid())] if ends_with_us else []
    harsh = cloud.harsh.text() if cloud.harsh else ""
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH"}}
    state = {"PERSIST_STATE": "1", "S3_PERSIST": "1"} if cloud.keeps_state else {}
    environment = kept | state | {
        "AUTH": "true",
        "BIND_HOST": LOOPBACK,
        "MINISTACK_HOST": LOOPBACK,
        "GATEWAY_PORT": cloud.endpoint.rsplit(":", 1)[1],
        "MINISTACK_WORKER_THREADS": str(SERVER_THREADS),
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        "STATE_DIR": str(cloud.folder / STATE),
        "S3_DATA_DIR": str(cloud.folder / "s3"),
        "TMPDIR": str(cloud.folder / "tmp"),
        "AWS_SECRET_ACCESS_KEY": cloud.secret,  # Other users could read an argument.
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    with cloud.server_log.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own arguments
            [sys.executable, "-m", server, str(python), str(cloud.request_log), harsh, *parent],
            env=environment,
            cwd=PROJECT.workspace,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # `stop` can end functions; ctrl-C doesn't reach the server
        )
    return process.pid


def _write(cloud: Cloud) -> None:
    fields = {
        "pid": cloud.pid,
        "endpoint": cloud.endpoint,
        "secret": cloud.secret,
        "sites": [asdict(site) for site in cloud.sites],
        "deployed": cloud.deployed,
        "harsh": cloud.harsh.text() if cloud.harsh else "",
        "keeps_state": cloud.keeps_state,
    }
    unfinished = cloud.folder / f"{FILE}.new"
    unfinished.write_text(json.dumps(fields, indent=1))
    unfinished.replace(cloud.folder / FILE)
    (cloud.folder / LAST_SITES).write_text(json.dumps(fields["sites"]))
    (cloud.folder / LAST_DEPLOYED).write_text(json.dumps(fields["deployed"]))
    (cloud.folder / LAST_PORT).write_text(cloud.endpoint.rsplit(":", 1)[1])


def _is_process_running(pid: int) -> bool:
    return is_running(pid, f"/{REQUEST_LOG}\0")


def _wait(is_done: Callable[[], bool], can_continue: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_done():
        if not can_continue() or time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(POLL_S)
