"""Settings of Spark's Python processes that reduce their fixed costs in CPU and memory."""

import asyncio
import ctypes
import gc
import importlib
import sys
import zipimport
from collections.abc import Coroutine
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, TypeVar

import pyarrow as pa

COLLECT_EVERY = 50_000  # new containers that outlive their function: some 25,000 messages, more than a segment has
SWITCH_S = 0.001  # how long a thread that computes keeps the interpreter from one whose answer has come
SOURCE_RUNNER = "python_streaming_source_runner"
# M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX: https://man7.org/linux/man-pages/man3/mallopt.3.html. Of less than
# two MiB are the columns of small messages: to have these from the system each time costs a tenth of the receiver's CPU
MALLOC = {-1: 2 * 2**20, -3: 2 * 2**20, -8: 1}
Outcome = TypeVar("Outcome")


def run(whole: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a coroutine in an event loop: uvloop's if it is installed, which costs less CPU."""
    try:
        loops = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        loops = None
    with asyncio.Runner(loop_factory=loops) as runner:
        return runner.run(whole)


async def wait_for_event(event: asyncio.Event, within_s: float) -> None:
    """Wait for an event, at most `within_s` seconds."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), within_s)


def collect_garbage_rarely() -> None:
    """Make garbage collections rare in this process, which only runs the receiver.

    Parsed messages live until their segment is durable, are never in cycles, and come at a rate that has the collector
    go through all of them again and again: half of the time that parsing takes. Modules aren't looked at any more.
    """
    freeze_modules()
    gc.set_threshold(COLLECT_EVERY, *gc.get_threshold()[1:])


def limit_memory() -> None:
    """Limit the memory of a streaming source's process, which counts as the driver's memory.

    Only in the process that Spark has for the source alone: elsewhere memory isn't ours to say how it is kept.
    """
    runner = getattr(sys.modules["__main__"], "__spec__", None)
    if not runner or not runner.name.endswith(SOURCE_RUNNER):
        return
    if "pandas" not in sys.modules:
        # Arrow imports pandas, 40 MiB, to ask whether a list is one of its types: once a process, and now in vain.
        finder = SimpleNamespace(find_spec=_refuse_pandas)
        sys.meta_path.insert(0, finder)  # all of a finder that Python asks for
        try:
            pa.array([""])
        finally:
            sys.meta_path.remove(finder)
    # Answers and columns live for moments, and are made by one thread and freed by another: an arena for each, and
    # Arrow's own allocator beside, keep twice what is in use. So glibc's malloc serves all, from one place.
    pa.set_memory_pool(pa.system_memory_pool())
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):  # musl's has none
        for parameter, value in MALLOC.items():
            libc.mallopt(parameter, value)
        libc.malloc_trim(0)


def _refuse_pandas(name: str, *_: object) -> None:
    if name == "pandas":
        raise ModuleNotFoundError(name, name=name)


def switch_threads_quickly() -> None:
    """Let threads of this process that wait for the network resume soon after a response.

    Every call to a socket gives the interpreter away; one that stages a segment meanwhile, which is computing, would
    keep it for 5 ms, and the connections stand still for a tenth of the time.
    """
    sys.setswitchinterval(SWITCH_S)


def speed_up_tasks() -> None:
    """Reduce the fixed cost of tasks in this Spark worker. Call it at the start of each task.

    Spark calls `importlib.invalidate_caches()` before every task; zipimport of Python 3.11 then reads the directory of
    pyspark.zip anew, 0.13 CPU seconds: SPARK-54744. The archive never changes while a worker lives. Python 3.13 only
    notes it for later.
    """
    if sys.version_info < (3, 13):
        zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005  as said
    freeze_modules()


def freeze_modules() -> None:
    """Exclude all current objects, mostly modules, from garbage collection in this process.

    After each task Spark has it look at everything, which costs a worker more than 10,000 rows do. Once, as what is
    garbage at that moment stays.
    """
    if not gc.get_freeze_count():
        gc.freeze()
