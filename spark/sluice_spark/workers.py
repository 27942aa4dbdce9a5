"""What Spark's Python processes need so that they cost what their rows cost."""

import asyncio
import gc
import importlib
import sys
import zipimport
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

COLLECT_EVERY = 50_000  # new containers that outlive their function: some 25,000 messages, more than a segment has
SWITCH_S = 0.001  # how long a thread that computes keeps the interpreter from one whose answer has come
Outcome = TypeVar("Outcome")


def run(whole: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run it in an event loop: uvloop's where that is installed, which costs less CPU."""
    try:
        loops = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        loops = None
    with asyncio.Runner(loop_factory=loops) as runner:
        return runner.run(whole)


def spare_collections() -> None:
    """Make the garbage collector look rarely, in this process: it is the receiver's alone.

    Parsed messages live until their segment is durable, are never in cycles, and come at a rate that has the collector
    go through all of them again and again: half of the time that parsing takes. Modules aren't looked at any more.
    """
    spare_modules()
    gc.set_threshold(COLLECT_EVERY, *gc.get_threshold()[1:])


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Make the garbage collector look rarely while a task receives, and then as before: others use its worker too."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def answer_soon() -> None:
    """Lets a thread that waits for the network go on soon after its answer came, in this process.

    Every call to a socket gives the interpreter away; one that stages a segment meanwhile, which is computing, would
    keep it for 5 ms, and the connections stand still for a tenth of the time.
    """
    sys.setswitchinterval(SWITCH_S)


def spare_tasks() -> None:
    """Let tasks cost what their rows cost, in this worker of Spark's. At the start of each."""
    spare_pyspark_zip()
    spare_modules()


def spare_modules() -> None:
    """Make the garbage collector leave alone what is there by now, in this process: modules, most of all.

    After each task Spark has it look at everything, which costs a worker more than 10,000 rows do. Once, as what is
    garbage at that moment stays.
    """
    if not gc.get_freeze_count():
        gc.freeze()


def spare_pyspark_zip() -> None:
    """Make `importlib.invalidate_caches()` leave pyspark.zip alone, in this process.

    Spark calls it before every task; zipimport of Python 3.11 then reads the archive's directory anew, 0.13 CPU
    seconds: SPARK-54744. The archive never changes while a worker lives. Python 3.13 only notes it for later.
    """
    if sys.version_info < (3, 13):
        zipimport.zipimporter.invalidate_caches = _leave  # type: ignore[method-assign]  # as said above


def _leave(self: zipimport.zipimporter) -> None:
    del self
