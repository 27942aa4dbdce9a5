"""`make demo`: runs the tutorial's commands on its own embedded cloud, then compares sent and arrived messages.

The exit code is 0 only if every message arrived exactly once, in the right queue or table.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from deltalake import DeltaTable, QueryBuilder
from rich.console import Console
from rich.table import Table

from sluice.cli.rendezvous.webrtc import POLLING
from sluice.cli.terminal import SIGNAL_EXIT_BASE
from sluice.demo.terminal import BackgroundCommand, CommandFailed, Terminal
from sluice.errors import SluiceError
from sluice.local.cloud import BUILD, clean_environment, find_cloud
from sluice.local.jobs import SPARK_PYTHON, find_spark_python

FOLDER = BUILD / "demo"  # The demo's commands run in this folder.
CLOUD = BUILD / "demo-cloud"  # The demo's embedded cloud is separate from that of `sluice local up`.
TABLE, MAP = "landed/tables/messages", "routes.svg"
STEPS = 5
CLIENTS, BYTES = 12, 20_000
MINE, OTHERS = 20, 40  # The session gets the first number of orders, and the table gets the second.
TRIES = 10  # Clients are run at most this often, because they may find no proxy in time on a busy machine.
SENT = f"{MINE + OTHERS} orders over two sites, and {CLIENTS * BYTES:,} bytes of {CLIENTS} clients"
ARRIVED_WITHIN_S = 240.0
LOOK_EVERY_S = 0.5

NEXT = """[bold]What to try next[/]
  . .venv/bin/activate
  sluice local up                                       the same, to stay
  sluice rendezvous proxy --local --loopback            be a proxy, in one terminal
  sluice rendezvous offer --local --loopback            be a client, in another
  sluice rendezvous status --local
  sluice console --local                                all of it on one live page, until ctrl-C; in a third terminal
  sluice split run --local --filter 'pipeline:user=^me$' -- env | grep SLUICE
  sluice local down
  make bench                                            the numbers, measured"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResults:
    """The demo's results: bytes that clients got back, and the ids of orders in the queue, session and table."""

    bytes_back: int
    queue_ids: Sequence[str]
    session_ids: Sequence[str]
    table_ids: Sequence[str]

    @property
    def lost_count(self) -> int:
        """The number of orders that never reached the queue, or reached it but neither the session nor the table."""
        arrived = set(self.queue_ids)
        return max(0, MINE + OTHERS - len(arrived)) + len(arrived - {*self.session_ids, *self.table_ids})

    @property
    def duplicate_count(self) -> int:
        """The number of extra copies of orders in the queue, plus that in the session and the table together."""
        ends = Counter([*self.session_ids, *self.table_ids])
        return len(self.queue_ids) - len(set(self.queue_ids)) + ends.total() - len(ends)

    def is_complete(self) -> bool:
        """Return whether each order arrived exactly once, and clients, session and table got all of their share."""
        shares = len(self.session_ids) == MINE, len(self.table_ids) == OTHERS
        return self.lost_count == self.duplicate_count == 0 and all(shares) and self.bytes_back == CLIENTS * BYTES

    @property
    def summary(self) -> str:
        """The demo's results as one line of text."""
        if self.is_complete():
            return f"{SENT}: every one accounted for"
        return f"{SENT}: {self.lost_count} lost, {self.duplicate_count} doubled, {self.bytes_back:,} bytes came back"

    def iter_rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield rows for a table of the results: the kind of data, how much was sent, and how much arrived."""
        yield f"bytes of {CLIENTS} clients, through a proxy and back", f"{CLIENTS * BYTES:,}", f"{self.bytes_back:,}"
        yield "orders over the route, in the queue there", f"{MINE + OTHERS}", f"{len(self.queue_ids)}"
        yield "of these split, to the session of user me", f"{MINE}", f"{len(self.session_ids)}"
        yield "of these landed in a table, by Spark", f"{OTHERS}", f"{len(self.table_ids)}"


def main(
    *,
    console: Annotated[
        bool, typer.Option("--console", help="Open the console meanwhile, and leave it until ctrl-C.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what the commands print.")] = False,
) -> None:
    """Deploy two sites, run the demo's commands, compare sent and arrived messages, and stop the embedded cloud."""
    out, started = Console(highlight=False), time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out.print(f"[bold]{SENT}: at the end every one is accounted for, or this fails", soft_wrap=True)
    try:
        with _open_terminal(out, verbose=verbose) as terminal, ExitStack() as others:
            _print_step(out, 1, "Two sites, deployed to an embedded cloud: takes a minute")
            terminal.run("sluice local up $here $there")
            watched = others.enter_context(_run_console(terminal)) if console else None
            results = _run_commands(terminal)
            table = Table("", "sent", "arrived", box=None)
            for name, sent, arrived in results.iter_rows():
                table.add_row(name, sent, arrived if arrived == sent else f"[red]{arrived}")
            out.print("", table)
            if watched is not None:
                watched.wait_for_ctrl_c(lambda: out.print("\nthe console stays until ctrl-C"))
                out.print("\nstopping…")
    except KeyboardInterrupt:
        sys.exit(SIGNAL_EXIT_BASE + signal.SIGINT)
    except SluiceError as error:
        out.print(f"[red]{error}")
        sys.exit(1)
    out.print(f"\n{NEXT}\n", soft_wrap=True)
    out.print(f"The routes as a picture: {FOLDER / MAP}. Nothing is left running.", soft_wrap=True)
    out.print(f"[bold]{results.summary}[/], in {time.monotonic() - started:.0f} s", soft_wrap=True)
    sys.exit(0 if results.is_complete() else 1)


@contextmanager
def _open_terminal(out: Console, *, verbose: bool) -> Iterator[Terminal]:
    """Open a terminal in an empty folder, and stop the demo's embedded cloud at the end."""
    python = find_spark_python(None)
    running_cloud = find_cloud(CLOUD)
    if running_cloud is not None:  # If a demo was killed, its embedded cloud still runs.
        running_cloud.stop()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    ours = {name: value for name, value in clean_environment().items() if not name.startswith("SLUICE_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), ours.get("PATH", os.defpath)])
    variables = {"SLUICE_LOCAL_FOLDER": str(CLOUD), SPARK_PYTHON: str(python), "PATH": path}
    sites = {"here": "000000000000/eu-central-1", "there": "111111111111/us-east-1"}
    out.print("[bold]$ " + " ".join(f"{site}={name}" for site, name in sites.items()))
    terminal = Terminal(FOLDER, {**ours, **variables, **sites}, out, verbose=verbose)
    try:
        yield terminal
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # A second ctrl-C must not prevent the stop.
        terminal.run("sluice local down")
        signal.signal(signal.SIGINT, before)


def _run_commands(terminal: Terminal) -> DemoResults:
    """Run the demo's commands of all four capabilities: rendezvous, pipeline, federation and splitting."""
    out, run = terminal.out, terminal.run
    _print_step(out, 2, "Rendezvous: clients find a proxy, and bytes go through it and back")
    with terminal.run_in_background(
        "sluice rendezvous proxy --local $here --loopback --count 4", name="proxy"
    ) as proxy:
        proxy.wait_for_output(POLLING)
        bytes_back = _run_clients(terminal)

    _print_step(out, 3, "Pipeline: Spark lands in a table what the consumer of the split queue there gets")
    job = "sluice pipeline run-local land --local $there --folder landed"
    with terminal.run_in_background(job, name="landing") as landing:
        _print_step(out, 4, "Federation: what is published here gets there, in another account and region")
        run("sluice binding add $there amq.topic sluice-queue-orders 'orders.#' --create")
        run("sluice binding add $there amq.topic pipeline 'orders.#'")
        run("sluice route add $there $here amq.topic 'orders.#'")
        run(f"sluice route map $there --svg {MAP}")

        _print_step(out, 5, "Splitting: a session takes its share of the split queue, Spark has the rest")
        consumer = f'sluice consume "$SLUICE_QUEUE_URL" --count {MINE} --wait 120 --json'
        session = f"sluice split run --local $there --filter 'pipeline:user=^me$' -- sh -c '{consumer}' > mine.jsonl"
        with terminal.run_in_background(session, name="session") as running:
            run("until sluice split status --local $there --json | grep -q Ready; do sleep 1; done")
            run(f"sluice publish $here amq.topic orders.new 'for me' --header user=me --count {MINE}")
            run(f"sluice publish $here amq.topic orders.new 'for you' --header user=you --count {OTHERS}")
            run(f"sluice consume $there sluice-queue-orders --count {MINE + OTHERS} --wait 60 --json > there.jsonl")
            running.wait(within_s=ARRIVED_WITHIN_S)
        run("sluice consume $there sluice-queue-orders --json >> there.jsonl   # nothing comes twice")
        deadline = time.monotonic() + ARRIVED_WITHIN_S
        while len(_read_landed_ids()) < OTHERS and landing.process.poll() is None and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        run("sluice status --local $there")
    return DemoResults(
        bytes_back=bytes_back,
        queue_ids=_read_message_ids("there.jsonl"),
        session_ids=_read_message_ids("mine.jsonl"),
        table_ids=_read_landed_ids(),
    )


def _run_clients(terminal: Terminal) -> int:
    """Run clients, and rerun those that find no proxy within five seconds. Returns how many bytes were echoed."""
    written = FOLDER / "clients.json"
    received_bytes: list[int] = []
    for _ in range(TRIES):
        count = CLIENTS - len(received_bytes) if received_bytes else 1  # One client runs first, during cold starts.
        several = f" --count {count} --concurrency 4" if count > 1 else ""
        line = f"sluice rendezvous offer --local $here --loopback --bytes {BYTES}{several}"
        terminal.run(f"{line} --json > {written.name}", may_fail=True)
        if not written.stat().st_size:
            raise CommandFailed(f"{line}: it failed")
        report = json.loads(written.read_text())
        echoed = [attempt["bytes_back"] for attempt in report["attempts"] if attempt["outcome"] == "echoed"]
        after = f", connected after {report['opened_ms_p50']:,.0f} ms (median)" if echoed else ""
        again = "" if len(echoed) == count else "; the rest had no answer in five seconds, and try again"
        terminal.out.print(f"{len(echoed)} of {count} had all bytes back over WebRTC{after}{again}", soft_wrap=True)
        received_bytes += echoed
        if len(received_bytes) == CLIENTS:
            break
    return sum(received_bytes)


@contextmanager
def _run_console(terminal: Terminal) -> Iterator[BackgroundCommand]:
    with terminal.run_in_background("sluice console --local", name="console") as watched:
        watched.wait_for_output("http://")
        terminal.out.print(watched.log.read_text().strip(), soft_wrap=True)
        yield watched


def _read_message_ids(name: str) -> list[str]:
    """Read message ids from a file with the output of `sluice consume --json`."""
    return [json.loads(line)["id"] for line in (FOLDER / name).read_text().splitlines()]


def _read_landed_ids() -> list[str]:
    """Read the message ids in the table that Spark wrote, with another Delta Lake library as a check."""
    table = str(FOLDER / TABLE)
    if not DeltaTable.is_deltatable(table):
        return []
    rows: Any = QueryBuilder().register("landed", DeltaTable(table)).execute("SELECT origin_id FROM landed").read_all()
    ids: list[str] = rows["origin_id"].to_pylist()
    return ids


def _print_step(out: Console, number: int, text: str) -> None:
    out.print(f"\n[bold reverse] {number} of {STEPS}  {text} [/]", soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
