"""What Spark's Python processes need so that they cost what their rows cost."""

import asyncio
import ctypes
import gc
import importlib
import sys
import zipimport
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
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
    """Run it in an event loop: uvloop's where that is installed, which costs less CPU."""
    try:
        loops = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        loops = None
    with asyncio.Runner(loop_factory=loops) as runner:
        return runner.run(whole)


async def waited(event: asyncio.Event, within_s: float) -> None:
    """Wait for it, or for so long."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), within_s)


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


def spare_memory() -> None:
    """Let a streaming source's process have little beside what it holds: it is within the driver's memory.

    Only in the process that Spark has for the source alone: elsewhere memory isn't ours to say how it is kept.
    """
    if not _command().endswith(SOURCE_RUNNER):
        return
    _without_pandas()
    _with_one_allocator()


def _command() -> str:
    """Name the module that was run as this process."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return main.name if main else ""


def _without_pandas() -> None:
    """Have Arrow not import pandas, 40 MiB, to ask whether a list is one of its types: it asks once a process."""
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([""])
    finally:
        sys.meta_path.remove(finder)


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


def _with_one_allocator() -> None:
    """Have glibc's malloc serve all, from one place.

    Answers and columns live for moments, and are made by one thread and freed by another: an arena for each, and
    Arrow's own allocator beside, keep twice what is in use.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # musl's has none
        for parameter, value in MALLOC.items():
            libc.mallopt(parameter, value)
        libc.malloc_trim(0)


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
