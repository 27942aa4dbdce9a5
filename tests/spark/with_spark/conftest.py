"""One local Spark for the folder, or a reason why there is none."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.spark.with_spark.killed import Drivers
from tests.timeouts import end_the_process, pytest_configure  # noqa: F401 - pytest finds the second here

MISSING = ([] if importlib.util.find_spec("pyspark") else ["pyspark"]) + ([] if shutil.which("java") else ["Java 17"])

# A Java that compiles lightly and collects with one thread: none runs long enough to make up for more. An archive made
# with other options is not used.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ARCHIVE = Path(sys.prefix) / "classes.jsa"  # of tests/spark/class_archive.py


def pytest_itemcollected(item: pytest.Item) -> None:
    """All in one process of `--dist=loadgroup`: another would start a Java of its own."""
    item.add_marker(pytest.mark.xdist_group("spark"))
    end_the_process(item)


@pytest.fixture(autouse=True)
def _spark_is_here() -> None:
    if MISSING:
        pytest.skip(f"needs {', '.join(MISSING)}: make test-spark has them")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if MISSING:
        pytest.skip(f"needs {', '.join(MISSING)}: make test-spark has them")
    from pyspark.sql import SparkSession  # noqa: PLC0415  may be missing here
    from sluice_spark import register  # noqa: PLC0415  may be missing here

    os.environ.update(AWS_ACCESS_KEY_ID="AKIATEST", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="eu-west-1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JAVA_TOOL_OPTIONS"] = f"{JAVA} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else JAVA
    root = Path(__file__).parents[3]
    os.environ["PYTHONPATH"] = f"{root / 'spark'}{os.pathsep}{root}"  # workers import the packages by name
    session = (
        SparkSession.builder.master("local[2, 4]")  # a task is tried four times, as on a cluster
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        # Plans that run once don't make up for classes compiled for them, or for being planned again.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    register(session)
    yield session
    session.stop()


@pytest.fixture
def drivers(spark: Any) -> Iterator[Drivers]:  # spark: it sets the environment that programs inherit
    """Killed at the latest when the test ends."""
    running = Drivers()
    yield running
    running.kill()


@pytest.fixture(scope="session")
def job_spark(spark: Any) -> Any:
    from sluice_jobs.session import configure_session  # noqa: PLC0415  needs PySpark

    return configure_session(spark)


@pytest.fixture(scope="session")
def received(job_spark: Any) -> Callable[[Iterable[Mapping[str, Any]]], Any]:
    """Rows as the source gives them."""
    from sluice_spark.log.segments import SPARK_SCHEMA  # noqa: PLC0415  may be missing here

    def frame(rows: Iterable[Mapping[str, Any]]) -> Any:
        return job_spark.createDataFrame(list(rows), SPARK_SCHEMA).coalesce(1)

    return frame
