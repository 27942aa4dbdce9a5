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

COLLECT_EVERY = 50_000  # new containers before a garbage collection: about 25,000 messages, more than a segment
SWITCH_S = 0.001  # interval after which a computing thread yields the interpreter
SOURCE_RUNNER = "python_streaming_source_runner"
# M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX: https://man7.org/linux/man-pages/man3/mallopt.3.html. Columns of
# small messages have less than 2 MiB; taking them from the system each time would cost a tenth of the receiver's CPU.
MALLOC = {-1: 2 * 2**20, -3: 2 * 2**20, -8: 1}
Outcome = TypeVar("Outcome")


def run(whole: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a coroutine in an event loop: uvloop's, which takes less CPU, if it is installed."""
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
    """Make garbage collections rare in this process, which only runs the receiver. Excludes loaded modules.

    Parsed messages live until their segment is durable, and are never in cycles. They arrive so fast that the collector
    would examine all of them again and again, which takes half of the parsing time.
    """
    freeze_modules()
    gc.set_threshold(COLLECT_EVERY, *gc.get_threshold()[1:])


def limit_memory() -> None:
    """Limit the memory of a streaming source's process, which counts as the driver's memory.

    Does nothing in other processes, whose memory management isn't ours to change.
    """
    runner = getattr(sys.modules["__main__"], "__spec__", None)
    if not runner or not runner.name.endswith(SOURCE_RUNNER):
        return
    if "pandas" not in sys.modules:
        # Arrow imports pandas (40 MiB) once per process to check a list's type. This check prevents the import.
        finder = SimpleNamespace(find_spec=_refuse_pandas)
        sys.meta_path.insert(0, finder)  # Python needs no other method of a finder
        try:
            pa.array([""])
        finally:
            sys.meta_path.remove(finder)
    # Responses and columns are short-lived, allocated in one thread and freed in another. Arenas per thread, and
    # Arrow's own allocator, would hold twice the used memory. So glibc's malloc serves all, with one arena.
    pa.set_memory_pool(pa.system_memory_pool())
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):  # musl has no mallopt
        for parameter, value in MALLOC.items():
            libc.mallopt(parameter, value)
        libc.malloc_trim(0)


def _refuse_pandas(name: str, *_: object) -> None:
    if name == "pandas":
        raise ModuleNotFoundError(name, name=name)


def switch_threads_quickly() -> None:
    """Let threads of this process that wait for the network resume soon after a response.

    Every socket call releases the interpreter. A thread that stages a segment would then keep it for 5 ms, and the
    connections would stand still for a tenth of the time.
    """
    sys.setswitchinterval(SWITCH_S)


def speed_up_tasks() -> None:
    """Reduce the fixed cost of tasks in this Spark worker. Call this function at the start of each task.

    Spark calls `importlib.invalidate_caches()` before every task. In Python 3.11 zipimport then reads the directory of
    pyspark.zip again, which takes 0.13 CPU seconds (SPARK-54744). Python 3.13 defers that. The archive never changes
    while a worker lives.
    """
    if sys.version_info < (3, 13):
        zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005  as said
    freeze_modules()


def freeze_modules() -> None:
    """Exclude all current objects, mostly modules, from garbage collection in this process.

    After each task Spark runs a full collection, which costs a worker more than 10,000 rows do. Freezes only once,
    because garbage at that moment is never freed.
    """
    if not gc.get_freeze_count():
        gc.freeze()
