"""A program on a session's queues: its variables, the signals it gets, and its end."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sluice.cli.terminal import SIGNALLED
from sluice.operator.sessions import OpenSession, SessionFailed

DEFAULT_VARIABLE = "SLUICE_QUEUE_URL"
URL, NAME = "_URL", "_NAME"
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_EVERY_S = 0.2
END_WITHIN_S = 20.0  # after the session's end, before the program is killed


def variables(opened: OpenSession, queues: Sequence[str]) -> Mapping[str, str]:
    """Name the variables that lead the program to the session's queues, from `[VARIABLE=]QUEUE` options.

    A queue's URL is in VARIABLE and its name beside it: in ORDERS_NAME of ORDERS_URL, or of ORDERS. A VARIABLE that
    itself ends in _NAME has the name, and there is no other. What an option says wins over what stands beside another.

    Raises `SessionFailed` for a queue that the session doesn't have, and where it isn't clear which is meant.
    """
    if not queues:
        queues = [each.queue_id for each in opened.view.queues]
        if len(queues) > 1:
            raise SessionFailed("the session has several queues: say with --queue VARIABLE=QUEUE which is which")
    said, beside = dict[str, str](), dict[str, str]()
    for option in queues:
        variable, _, queue_id = option.rpartition("=")
        variable = variable or DEFAULT_VARIABLE
        url = opened.url_of(queue_id)
        name = url.rsplit("/", 1)[1]
        if variable.endswith(NAME):
            said[variable] = name
        else:
            said[variable] = url
            beside[variable.removesuffix(URL) + NAME] = name
    return beside | said


def run_program(command: Sequence[str], environment: Mapping[str, str], opened: OpenSession) -> int:
    """Run the program with this environment; its exit code. It gets our signals and ends in its own way.

    The session is there until it has. Where the session ends first, the program is asked to end: it would read a queue
    that goes away. Raises `SessionFailed` where it can't be run.
    """
    try:
        program = subprocess.Popen(command, env=dict(environment))  # noqa: S603 - the user's own command
    except OSError as error:
        raise SessionFailed(f"{command[0]}: {error.strerror}") from error
    with _signals_to(program):
        while program.poll() is None:
            if opened.ended.wait(LOOK_EVERY_S):
                program.terminate()
                try:
                    program.wait(END_WITHIN_S)
                except subprocess.TimeoutExpired:
                    program.kill()
                    program.wait()
    if program.returncode and not opened.ended.is_set():
        opened.beat()  # after a machine has slept the queue is gone, and programs notice before heartbeats do
    return program.returncode if program.returncode >= 0 else SIGNALLED - program.returncode


def run_in_foreground(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program that gets our signals and has the whole of this environment; its exit code."""
    program = subprocess.Popen(command, env=dict(environment))  # noqa: S603 - our own arguments
    with _signals_to(program):
        while program.poll() is None:
            with suppress(KeyboardInterrupt):  # from the terminal: the program has got it too, and ends in its own way
                program.wait()
    return program.returncode if program.returncode >= 0 else SIGNALLED - program.returncode


@contextmanager
def _signals_to(program: "subprocess.Popen[bytes]") -> Iterator[None]:
    def pass_on(number: int, _: Any) -> None:
        # From a terminal ctrl-C reaches the program by itself: it is in the foreground too.
        if number != signal.SIGINT or not os.isatty(0):
            program.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
