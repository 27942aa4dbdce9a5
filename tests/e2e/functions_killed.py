"""Functions' processes killed now and then: those of the tests' own cloud, found by the folder that they run in."""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sluice.local.cloud import Cloud

SEED = 20_261_121


@contextmanager
def functions_killed(cloud: Cloud, names: Sequence[str], *, every_s: tuple[float, float]) -> Iterator[Counter[str]]:
    """While it lasts, a process of one of these functions is killed at random times; how often, by name."""
    killed, done, draw = Counter[str](), threading.Event(), random.Random(SEED)

    def kill() -> None:
        while not done.wait(draw.uniform(*every_s)):
            name = draw.choice(names)
            processes = processes_of(cloud, name)
            if processes:
                os.kill(draw.choice(processes), signal.SIGKILL)
                killed[name] += 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield killed
    finally:
        done.set()
        killer.join()


def processes_of(cloud: Cloud, name: str) -> list[int]:
    """Those of the functions with this in their names."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = os.getsid(int(process.name)) == cloud.pid
            if ours and name in str((process / "cwd").readlink()):
                found.append(int(process.name))
        except OSError:
            continue  # it ended meanwhile
    return found
