"""One embedded cloud: its process, the folder with its state and logs, and how programs reach it."""

import contextlib
import json
import os
import random
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

from sluice.building.project import PROJECT, need
from sluice.errors import SluiceError
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.processes import end_session, is_running
from sluice.local.runtime import install_lambda_python, runtime_python
from sluice.local.sites import Site

LOOPBACK = "127.0.0.1"
SERVER, REQUEST_LOG = "sluice.local.server", "requests.jsonl"
READY_TIMEOUT_S = 180
STOP_TIMEOUT_S = 10
# Below what Linux, macOS and the BSDs give to outgoing connections.
PORTS = range(20_000, 32_000)
KEEP_TIMEOUT_S = 120  # of a cloud that keeps its state: what is killed before that is done has lost all since its start
POLL_S = 0.05
SECRET = "test"  # noqa: S105 - of every account's root in ministack; it protects nothing
LOG_TAIL_LINES = 20
# A proxy function waits in its poll for ten seconds and each holds a thread of the server.
SERVER_THREADS = 512

BUILD = PROJECT.build
# Of the cloud that the command line has: another one, beside that, is in another folder.
FOLDER = Path(os.environ.get("SLUICE_LOCAL_FOLDER") or BUILD / "local")
# Of a cloud's folder; all but the first stay when the cloud is stopped.
FILE, LAST_SITES, LAST_DEPLOYED, LAST_PORT, STATE = "cloud.json", "sites.json", "deployed.json", "port", "state"


class CloudFailed(SluiceError):
    """The embedded cloud doesn't start or isn't there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """A running embedded cloud. `sites` are those deployed to, in the order of their deployment.

    `deployed` has by site what the deployer noted, by which it knows it again. `harsh` is what it does of what AWS may
    do, None where it does none of that; `keeps_state` where it can come back as it was stopped.
    """

    pid: int
    endpoint: str
    folder: Path
    sites: tuple[Site, ...] = ()
    deployed: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    harsh: Behaviours | None = None
    keeps_state: bool = False

    @property
    def server_log(self) -> Path:
        """What the server and the functions say."""
        return self.folder / "server.log"

    @property
    def request_log(self) -> Path:
        """Every SQS request, as `sluice.local.requests` notes them."""
        return self.folder / REQUEST_LOG

    def environment(self, site: Site) -> dict[str, str]:
        """Give the variables with which any AWS program is the root of the site's account, and reaches nothing else."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": site.account,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": site.region,
            "AWS_DEFAULT_REGION": site.region,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def with_site(self, site: Site, deployed: Mapping[str, str] | None = None) -> "Cloud":
        """Note a deployment to `site` and what was `deployed`, where that is known, also in the cloud's file."""
        sites = (*(known for known in self.sites if known != site), site)
        cloud = replace(self, sites=sites, deployed={**self.deployed, str(site): deployed or {}})
        _write(cloud)
        return cloud

    def is_running(self) -> bool:
        """Whether the process is there and answers."""
        return _runs(self.pid) and _answers(self.endpoint)

    def stop(self) -> None:
        """End the server and the functions that it runs, which are in its session.

        A cloud that keeps its state is given the time to save it. Any other is killed: its tables and queues go with
        it, so that what its functions would still write would be lost.
        """
        if self.keeps_state:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                _wait(lambda: not _runs(self.pid), lambda: True, KEEP_TIMEOUT_S)
        # Also after a server that has ended: functions, even stopped ones, may have outlived it.
        end_session(self.pid)
        with contextlib.suppress(TimeoutError):
            _wait(lambda: not _runs(self.pid), lambda: True, STOP_TIMEOUT_S)
        (self.folder / FILE).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)


def start(
    folder: Path = FOLDER,
    *,
    keep_state: bool = False,
    save_state: bool = False,
    ends_with_us: bool = False,
    harsh: Behaviours | None = None,
    server: str = SERVER,
) -> Cloud:
    """Start a cloud on a free port and wait until it answers. With `keep_state` it comes back as it was stopped.

    It comes back at its old port, by which clients know their queues' URLs, unless somebody else has that now.
    What comes back is what the last one saved as it was stopped: it does where it was started with either of
    `keep_state` and `save_state`; the latter begins with nothing. `not_kept` says what can't come back.
    With `ends_with_us` it ends when this process does, also where that is killed. With `harsh` it does what AWS may do.
    `server` is the module that is run: another one patches more of the cloud, and then calls this one's `main`.

    Raises `CloudFailed` with the end of its log where it doesn't start, or where one runs already.
    """
    running = find(folder)
    if running:
        raise CloudFailed(f"a cloud runs already: process {running.pid} at {running.endpoint}")
    need("local", "ministack", "aws_cdk")
    install_lambda_python()
    python = runtime_python(BUILD, PROJECT.lock)
    sites, deployed = tuple[Site, ...](), dict[str, Mapping[str, str]]()
    if not keep_state:
        shutil.rmtree(folder, ignore_errors=True)
    elif _has_state(folder) and (folder / LAST_SITES).exists():
        sites = tuple(Site(**site) for site in json.loads((folder / LAST_SITES).read_text()))
        with contextlib.suppress(FileNotFoundError):
            deployed = json.loads((folder / LAST_DEPLOYED).read_text())
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    endpoint = f"http://{LOOPBACK}:{_free_port(folder)}"
    keeps = keep_state or save_state
    cloud = Cloud(
        pid=0, endpoint=endpoint, folder=folder, sites=sites, deployed=deployed, harsh=harsh, keeps_state=keeps
    )
    cloud = replace(cloud, pid=_spawn(cloud, python, server, ends_with_us=ends_with_us))
    _write(cloud)
    try:
        _wait(cloud.is_running, lambda: _runs(cloud.pid), READY_TIMEOUT_S)
    except TimeoutError:
        cloud.stop()
        raise CloudFailed(f"the embedded cloud didn't start\n{tail(cloud.server_log)}") from None
    return cloud


def not_kept(folder: Path = FOLDER) -> str | None:
    """Say what of this folder's last cloud, which doesn't run, can't come back; None where all of it does."""
    if (folder / FILE).exists():  # it goes as a cloud is stopped
        rest = "what was saved before it comes back" if _has_state(folder) else "nothing of it comes back"
        return f"the last cloud was not stopped by `sluice local down`, and saved nothing: {rest}"
    if not _has_state(folder):
        return "no cloud has saved its state here: this one begins with nothing, and is saved by `sluice local down`"
    return None


def _has_state(folder: Path) -> bool:
    return (folder / STATE).is_dir() and any((folder / STATE).iterdir())


def find(folder: Path = FOLDER) -> Cloud | None:
    """Find the running cloud of this folder; None where there is none."""
    try:
        fields = json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        return None
    cloud = Cloud(
        pid=fields["pid"],
        endpoint=fields["endpoint"],
        folder=folder,
        sites=tuple(Site(**site) for site in fields["sites"]),
        deployed=fields.get("deployed", {}),
        harsh=Behaviours.parse(fields["harsh"]) if fields.get("harsh") else None,
        keeps_state=bool(fields.get("keeps_state")),
    )
    return cloud if cloud.is_running() else None


def tail(log: Path) -> str:
    """Give the last lines of a log."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-LOG_TAIL_LINES:])


def clean_environment() -> dict[str, str]:
    """Ours without anything that could lead a program to a real account."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}


def _free_port(folder: Path) -> int:
    """Return the port of this folder's last cloud, or a free one if that is taken.

    The server binds it a second later. The operating system gives outgoing connections ports of a higher range, so
    none of these takes it meanwhile, as happened to ports that the system had chosen.
    """
    last = folder / LAST_PORT
    ports = random.sample(PORTS, 100)
    for port in (int(last.read_text()), *ports) if last.exists() else ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            # As the server does: what its connections leave behind for a minute does not take the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return port
    raise CloudFailed("there is no free port")


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
            start_new_session=True,  # so that its functions end with it, and ctrl-C reaches only who started it
        )
    return process.pid


def _write(cloud: Cloud) -> None:
    fields = {
        "pid": cloud.pid,
        "endpoint": cloud.endpoint,
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


def _runs(pid: int) -> bool:
    return is_running(pid, f"/{REQUEST_LOG}\0")


def _answers(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(f"{endpoint}/_ministack/ready", timeout=5) as response:  # noqa: S310 - loopback
            return bool(response.status == 200)  # noqa: PLR2004 - HTTP's own number
    except OSError:
        return False


def _wait(done: Callable[[], bool], may_go_on: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        if not may_go_on() or time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(POLL_S)
