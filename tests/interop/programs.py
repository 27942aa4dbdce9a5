"""The real snowflake-client and snowflake-proxy: fetched from Debian without touching the system, run, ended by pid."""

import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

LOOPBACK = "127.0.0.1"
PACKAGES = ("snowflake-client", "snowflake-proxy")
SYSTEM_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
SUITE = "sid"
FETCH_TIMEOUT_S = 240
END_TIMEOUT_S = 5.0
READ_EVERY_S = 0.05
LOG_END_BYTES = 3000  # how much of a log a failure shows


class FetchFailed(Exception):
    """The programs can't be had here; the text says why."""


@dataclass(frozen=True)
class Programs:
    """Where the two programs are."""

    client: Path
    proxy: Path


def fetch(cache: Path) -> Programs:
    """The programs in `cache`, downloaded once. Raises `FetchFailed`."""
    unpacked = cache / "snowflake"
    if not unpacked.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as workplace:
            _download(Path(workplace))
            # Only a whole download gets the name; of two at once the first one wins.
            if not unpacked.exists():
                (Path(workplace) / "unpacked").rename(unpacked)
    return Programs(client=unpacked / "usr/bin/snowflake-client", proxy=unpacked / "usr/bin/snowflake-proxy")


def _download(workplace: Path) -> None:
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise FetchFailed(f"{tool} is not here")
    options = _apt_options(workplace)
    _run(["apt-get", *options, "--quiet", "update"], workplace)
    _run(["apt-get", *options, "--quiet", "download", *PACKAGES], workplace)
    for package in sorted(workplace.glob("*.deb")):
        _run(["dpkg", "-x", str(package), "unpacked"], workplace)


def _apt_options(workplace: Path) -> list[str]:
    """An apt that knows only the suite, from the system's mirror and with its keys, and writes only in `workplace`."""
    for folder in ("state/lists/partial", "cache/archives/partial", "sources"):
        (workplace / folder).mkdir(parents=True)
    (workplace / "sources" / f"{SUITE}.sources").write_text(_suite_source())
    settings = {
        "Dir::State": workplace / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": workplace / "cache",
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": workplace / "sources",
        "Acquire::Retries": 1,
        "Acquire::http::Timeout": 20,
        "Acquire::https::Timeout": 20,
    }
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def _suite_source() -> str:
    if not SYSTEM_SOURCES.exists():
        raise FetchFailed(f"no {SYSTEM_SOURCES}: this is no Debian 12 or later")
    stanza = SYSTEM_SOURCES.read_text().strip().split("\n\n")[0]
    return re.sub(r"(?m)^Suites:.*$", f"Suites: {SUITE}", stanza) + "\n"


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchFailed(str(error)) from error
    if done.returncode != 0:
        raise FetchFailed(f"{' '.join(command[:1])} {command[-1]}: {(done.stderr or done.stdout).strip()[-500:]}")


class Running:
    """A program that was started, and its log. As a context it is ended at the end."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log

    def logged(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def waits_for(self, pattern: str, *, within_s: float) -> re.Match[str]:
        """The first place in the log that matches; fails the test, with the end of the log, where none comes."""
        expression = re.compile(pattern)
        end = time.monotonic() + within_s
        while (found := expression.search(self.logged())) is None:
            alive = self.process.poll() is None
            assert alive, f"ended with {self.process.returncode}; its log ends\n{self.logged()[-LOG_END_BYTES:]}"
            late = f"no {pattern!r} in {within_s:g} s in {self.log}, which ends\n{self.logged()[-LOG_END_BYTES:]}"
            assert time.monotonic() < end, late
            time.sleep(READ_EVERY_S)
        return found

    def end(self) -> None:
        """Ends it, hard where it doesn't go by itself."""
        self.process.terminate()
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class RunningClient(Running):
    """The real client as tor would run it: a SOCKS server whose every connection is a stream to the bridge."""

    def __init__(self, process: subprocess.Popen[str], log: Path, address: tuple[str, int]) -> None:
        super().__init__(process, log)
        self._stream = socks_connection(address)

    def send(self, data: bytes) -> None:
        """Gives it bytes for the bridge."""
        self._stream.sendall(data)

    def end(self) -> None:
        """Ends it with its stream."""
        self._stream.close()
        super().end()


def start_client(
    program: Path, folder: Path, *, sqs_endpoint: str, method: Sequence[str], stun_url: str
) -> RunningClient:
    """Starts the client and opens a stream, with which a rendezvous begins.

    `method` are the arguments that say how. With `-sqsqueue` the queue's URL must be AWS's, as the client reads the
    region from it, `https://sqs.<region>.amazonaws.com/…`; the calls go to `sqs_endpoint`.
    """
    folder.mkdir(parents=True)
    log = folder / "client.log"
    process = subprocess.Popen(
        # It never offers 127.0.0.1 as a host's address; a STUN server on loopback gives it that as a reflexive one.
        # -unsafe-logging: else addresses in the answers that we compare are scrubbed.
        [program, *method, "-ice", stun_url, "-keep-local-addresses", "-unsafe-logging", "-log", log],
        env={
            "TOR_PT_MANAGED_TRANSPORT_VER": "1",
            "TOR_PT_CLIENT_TRANSPORTS": "snowflake",
            "TOR_PT_STATE_LOCATION": str(folder / "state"),
            "AWS_ENDPOINT_URL_SQS": sqs_endpoint,
            "HOME": str(folder),  # no profile or configuration of the user's
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        return RunningClient(process, log, _socks_address(process))
    except BaseException:
        Running(process, log).end()
        raise


def _socks_address(process: subprocess.Popen[str]) -> tuple[str, int]:
    said = []
    for line in process.stdout or ():
        said.append(line)
        if found := re.match(r"CMETHOD snowflake socks5 ([\d.]+):(\d+)", line):
            return found[1], int(found[2])
    raise AssertionError(f"the client started no SOCKS server: {''.join(said)}")


def socks_connection(address: tuple[str, int]) -> socket.socket:
    """A connection through a SOCKS5 server without authentication; the client ignores where it is to go."""
    connection = socket.create_connection(address, timeout=10)
    connection.sendall(b"\x05\x01\x00")
    assert connection.recv(2) == b"\x05\x00"
    connection.sendall(b"\x05\x01\x00\x01" + socket.inet_aton("0.0.0.1") + (1).to_bytes(2, "big"))
    assert connection.recv(10)[:2] == b"\x05\x00"
    return connection


def start_proxy(program: Path, folder: Path, *, broker_url: str, probe_url: str, stun_url: str) -> Running:
    """Starts the proxy. It first has `probe_url` tell its NAT, then polls."""
    folder.mkdir(parents=True)
    log = folder / "proxy.log"
    process = subprocess.Popen(
        # `-relay` is for brokers that name none; ours always does, so a byte that goes there is lost on purpose.
        [program, "-broker", broker_url, "-relay", f"ws://{LOOPBACK}:1/", "-allow-non-tls-relay",
         "-allow-proxying-to-private-addresses", "-allowed-relay-hostname-pattern", "$", "-keep-local-addresses",
         "-poll-interval", "2s", "-nat-probe-server", probe_url, "-nat-retest-interval", "0s", "-stun", stun_url,
         "-disable-stats-logger", "-verbose", "-unsafe-logging", "-log", log],
        env={"HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    return Running(process, log)
