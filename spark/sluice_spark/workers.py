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

COLLECT_EVERY = 50_000  # number of new containers between garbage collections: about 25,000 messages
SWITCH_S = 0.001  # seconds after which a computing thread yields the interpreter
SOURCE_RUNNER = "python_streaming_source_runner"
# M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX: https://man7.org/linux/man-pages/man3/mallopt.3.html.
# Allocating small messages' columns (2 MiB) from the system would cost a tenth of the receiver's CPU time.
MALLOC = {-1: 2 * 2**20, -3: 2 * 2**20, -8: 1}
Outcome = TypeVar("Outcome")


def run(coroutine: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a coroutine in a new event loop: uvloop's if it is installed, because it needs less CPU."""
    try:
        loops = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        loops = None
    with asyncio.Runner(loop_factory=loops) as runner:
        return runner.run(coroutine)


async def wait_for_event(event: asyncio.Event, within_s: float) -> None:
    """Wait for an event, at most `within_s` seconds."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), within_s)


def collect_garbage_rarely() -> None:
    """Make garbage collections rare in this process, which only runs the receiver. Excludes loaded modules.

    Parsed messages live until their segment is durable, and never form reference cycles. They arrive so fast that the
    collector would examine every message repeatedly, which takes half of the parsing time.
    """
    freeze_modules()
    gc.set_threshold(COLLECT_EVERY, *gc.get_threshold()[1:])


def limit_memory() -> None:
    """Limit the memory of a streaming source's process, which counts as the driver's memory.

    Does nothing in other processes, which may have code of the user.
    """
    runner = getattr(sys.modules["__main__"], "__spec__", None)
    if not runner or not runner.name.endswith(SOURCE_RUNNER):
        return
    if "pandas" not in sys.modules:
        # Arrow imports pandas (40 MiB) once per process to check a list's type. This check prevents the import.
        finder = SimpleNamespace(find_spec=_refuse_pandas)
        sys.meta_path.insert(0, finder)  # A finder needs only this method.
        try:
            pa.array([""])
        finally:
            sys.meta_path.remove(finder)
    # Responses and columns are allocated in one thread and freed in another. With an arena per thread, or Arrow's
    # allocator, the process would take twice the memory in use. Therefore all threads use one arena of glibc's malloc.
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

    Every socket call releases the interpreter. A thread that stages a segment would keep the interpreter for 5 ms, and
    connections would wait for a tenth of the time.
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

    After each task Spark runs a full collection, which costs a worker more CPU than 10,000 rows. Freezes only once,
    because existing garbage is never freed.
    """
    if not gc.get_freeze_count():
        gc.freeze()
