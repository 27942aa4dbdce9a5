"""Runs a program on a session's queues: sets its environment variables, forwards signals and terminates it."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sluice.cli.terminal import SIGNAL_EXIT_BASE
from sluice.operator.sessions import OpenSession, SessionFailed

DEFAULT_VARIABLE = "SLUICE_QUEUE_URL"
URL, NAME = "_URL", "_NAME"
FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CHECK_INTERVAL_S = 0.2
TERMINATE_TIMEOUT_S = 20.0  # After SIGTERM, a program has this number of seconds to end before SIGKILL.


def build_queue_variables(urls: Mapping[str, str], queues: Sequence[str]) -> Mapping[str, str]:
    """Return the environment variables for `[VARIABLE=]QUEUE` options. `urls` are the session's queue URLs by queue id.

    `ORDERS_URL=orders` or `ORDERS=orders` sets that variable to the queue's URL, and also ORDERS_NAME to its name.
    `ORDERS_NAME=orders` sets only this variable, to the name, even if another option would also set ORDERS_NAME.

    Raises `SessionFailed` for a malformed option, and for several queues without an option.
    """
    if not queues and len(urls) > 1:
        raise SessionFailed("the session has several queues: assign each to a variable with --queue VARIABLE=QUEUE")
    chosen, second = dict[str, str](), dict[str, str]()
    for option in queues or urls:
        variable, _, queue_id = option.rpartition("=")
        variable = variable or DEFAULT_VARIABLE
        if queue_id not in urls:
            raise SessionFailed(f"--queue: the session has no queue {queue_id!r}: it has {', '.join(sorted(urls))}")
        if not variable.isidentifier() or variable in chosen:
            raise SessionFailed(f"--queue: {variable!r} can't be a variable, or is assigned twice")
        url = urls[queue_id]
        name = url.rsplit("/", 1)[1]
        if variable.endswith(NAME):
            chosen[variable] = name
        else:
            chosen[variable] = url
            second[variable.removesuffix(URL) + NAME] = name
    return second | chosen


def build_queue_options(variables: Mapping[str, Sequence[str]]) -> list[str]:
    """Build `--queue` options from deployed consumers' `variables` by queue id; empty if a queue has no own variable.

    The only queue of a session also gets the default variable.
    """
    names = [name for own_names in variables.values() for name in own_names]
    if not all(variables.values()) or len({*names}) < len(names) or not all(map(str.isidentifier, names)):
        return []
    options = [f"{name}={queue_id}" for queue_id, own_names in variables.items() for name in own_names]
    return [*options, *variables] if len(variables) == 1 else options


def run_program(command: Sequence[str], environment: Mapping[str, str], session: OpenSession) -> int:
    """Run a program with exactly this environment, forward signals to the program, and return its exit code.

    If the session ends first, the program is terminated, because its queues are deleted. Raises `SessionFailed` if the
    program can't be started.
    """
    try:
        program = subprocess.Popen(command, env=dict(environment))  # noqa: S603 - the user's own command
    except OSError as error:
        raise SessionFailed(f"{command[0]}: {error.strerror}") from error
    with _forward_signals(program):
        while program.poll() is None:
            if session.ended.wait(CHECK_INTERVAL_S):
                program.terminate()
                try:
                    program.wait(TERMINATE_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    program.kill()
                    program.wait()
    if program.returncode and not session.ended.is_set():
        session.send_heartbeat()  # This finds out whether the program failed because the session had expired.
    return program.returncode if program.returncode >= 0 else SIGNAL_EXIT_BASE - program.returncode


def run_in_foreground(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program with exactly this environment, forward signals to the program, and return its exit code."""
    program = subprocess.Popen(command, env=dict(environment))  # noqa: S603 - our own arguments
    with _forward_signals(program):
        while program.poll() is None:
            with suppress(KeyboardInterrupt):  # The program gets ctrl-C from the terminal, and decides whether to end.
                program.wait()
    return program.returncode if program.returncode >= 0 else SIGNAL_EXIT_BASE - program.returncode


@contextmanager
def _forward_signals(program: "subprocess.Popen[bytes]") -> Iterator[None]:
    def forward_signal(number: int, _: Any) -> None:
        # The terminal itself sends ctrl-C to the program, because the program is in the foreground.
        if number != signal.SIGINT or not os.isatty(0):
            program.send_signal(number)

    before = {number: signal.signal(number, forward_signal) for number in FORWARDED_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
