import gc
import importlib
import os
import subprocess
import sys
import weakref
import zipfile
import zipimport
from collections.abc import Iterator
from pathlib import Path

import pytest
from sluice_spark.workers import (
    COLLECT_EVERY,
    SWITCH_S,
    collect_garbage_rarely,
    freeze_modules,
    speed_up_tasks,
    switch_threads_quickly,
)

UNTOUCHED = zipimport.zipimporter.invalidate_caches  # modules are imported before the first test runs


class _InCycle:
    def __init__(self, cycle: list[object]) -> None:
        cycle.append(self)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before, threshold = zipimport.zipimporter.invalidate_caches, gc.get_threshold()
    interval = sys.getswitchinterval()
    # Other tests' tasks run in this process too, and leave it as Spark's workers have it
    zipimport.zipimporter.invalidate_caches = UNTOUCHED  # type: ignore[method-assign]  # what they replaced
    yield
    zipimport.zipimporter.invalidate_caches = before  # type: ignore[method-assign]  # what the test replaced
    gc.set_threshold(*threshold)
    gc.unfreeze()
    sys.setswitchinterval(interval)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="from 3.13 on zipimport reads an archive anew only when asked")
def test_an_archive_is_not_read_again_before_each_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("zipped_module.py", "")
    monkeypatch.syspath_prepend(str(archive))
    importlib.import_module("zipped_module")
    read: list[str] = []
    directory = zipimport._read_directory  # type: ignore[attr-defined]  # what costs the time

    def counted(path: str) -> object:
        read.append(path)
        return directory(path)

    monkeypatch.setattr(zipimport, "_read_directory", counted)
    importlib.invalidate_caches()
    assert str(archive) in read
    read.clear()
    speed_up_tasks()
    importlib.invalidate_caches()
    assert read == []
    assert importlib.import_module("zipped_module")


def test_the_collector_looks_rarely_and_still_looks() -> None:
    collect_garbage_rarely()
    assert gc.isenabled()
    assert gc.get_threshold()[0] == COLLECT_EVERY
    assert gc.get_freeze_count() > 0


def test_the_collector_leaves_a_workers_modules_alone_and_what_comes_later_it_collects() -> None:
    freeze_modules()
    kept = gc.get_freeze_count()
    assert kept > 0
    later: list[object] = []
    later.append(later)
    gone = weakref.ref(_InCycle(later))
    freeze_modules()
    del later
    gc.collect()
    assert gone() is None
    assert gc.get_freeze_count() <= kept


def test_a_thread_that_computes_gives_way_to_the_network_soon() -> None:
    switch_threads_quickly()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)


PROGRAM = """
import sys
import pyarrow as pa
from sluice_spark.log.segments import Header, build_rows, encode_segment
from sluice_spark.sqs.received import Received, parse_messages
from sluice_spark.workers import limit_memory

limit_memory()
message = b'{"MessageId":"i","Body":"b","MessageAttributes":{"a":{"DataType":"String","StringValue":"v"}}}'
received = [Received("http://q/1/q", parse_messages(b'{"Messages":[%s,%s]}' % (message, message)))]
encode_segment(pa.Table.from_batches([build_rows(received)]), Header(number=0, writer="w", published_ms=0))
print(pa.default_memory_pool().backend_name == "system", "pandas" in sys.modules, "pyarrow.compute" in sys.modules)
"""


@pytest.mark.parametrize(
    ("module", "printed"),
    [("python_streaming_source_runner", "True False False"), ("somebody_s_program", "False True True")],
)
def test_a_source_s_process_has_one_allocator_and_no_pandas_and_others_have_what_they_had(
    tmp_path: Path, module: str, printed: str
) -> None:
    pytest.importorskip("pandas", reason="what isn't there isn't imported")
    (tmp_path / f"{module}.py").write_text(PROGRAM)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", module],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout.strip() == printed
