"""What the guides for Spark say is run, from the line that installs it on, in an environment that has nothing else."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from sluice.local.cloud import Cloud, start_cloud
from sluice.local.sites import Site
from tests.snippets.documents import CHECKED, SPARK, blocks, commands
from tests.wheels.conftest import ROOT, UV, Installed

GUIDE = ROOT / "docs" / "spark.md"
JOBS = ROOT / "docs" / "jobs.md"
GUIDES = [GUIDE, ROOT / "spark" / "README.md", JOBS]
BESIDE = {JOBS: ("duckdb", "polars", "pandas")}  # which it names where it reads its tables with them
NEEDS = "needs "  # how the reason begins of what can't run on a machine without a network
INSTALL = re.compile(r"pip install\s\S*\./spark")
HERE = Site("123456789012", "eu-west-1")
WITHIN_S = 900


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Installed]:
    """Somebody who has typed a guide's line for installing, at the versions that are locked."""

    @cache
    def made_by(line: str, *beside: str) -> Installed:
        wanted = shlex.split(line, comments=True)[2:]
        folder = tmp_path_factory.mktemp("reader")
        made = Installed(python=folder / "venv" / "bin" / "python", folder=folder)
        subprocess.run([UV, "venv", "--quiet", "--python", sys._base_executable, folder / "venv"], check=True)  # type: ignore[attr-defined]  # what this one was made of
        locked = ["--constraint", "spark/requirements.txt", "--no-verify-hashes"]
        install = [str(UV), "pip", "install", "--quiet", "--python", str(made.python)]
        subprocess.run([*install, *locked, *wanted, *beside], check=True, cwd=ROOT)
        return made

    return lambda guide: made_by(installing(guide), *BESIDE.get(guide, ()))


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    running = start_cloud(tmp_path / "cloud", ends_with_us=True)
    yield running
    running.stop()


def installing(guide: Path) -> str:
    typed = [command.text for block in blocks(guide) if block.language == "sh" for command in commands(block)]
    [line] = [text for text in typed if INSTALL.match(text)]
    return line


def steps(document: Path) -> list[dict[str, str]]:
    marked = [block for block in blocks(document) if block.mark == SPARK]
    return [
        {
            "place": block.place,
            "language": block.language,
            "text": block.text,
            "situation": block.rest,
        }
        for block in marked
    ]


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 60)
@pytest.mark.parametrize("document", GUIDES, ids=lambda path: path.name)
def test_a_guide_can_be_followed_from_its_first_block_to_its_last(
    document: Path, reader: Callable[[Path], Installed], cloud: Cloud, tmp_path: Path
) -> None:
    made = reader(document)
    of_spark = {
        "PYSPARK_PYTHON": str(made.python),
        "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2"
        f" --conf spark.sql.warehouse.dir={tmp_path}/warehouse --conf spark.driver.host=127.0.0.1 pyspark-shell",
    }
    done = subprocess.run(
        [made.python, ROOT / "tests" / "wheels" / "guides.py", tmp_path],
        input=json.dumps(steps(document)),
        env=made.environment | cloud.environment(HERE) | of_spark,
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    assert len(re.findall(r": \d+\.\d s$", done.stdout, re.MULTILINE)) == len(steps(document))
    assert ("Sluice/Spark" in done.stdout) == (document == GUIDE)  # whose listener prints a stream's metrics


@pytest.mark.slow
def test_the_guide_names_the_hadoop_that_spark_brings(reader: Callable[[Path], Installed]) -> None:
    [named] = {found for block in blocks(GUIDE) for found in re.findall(r"hadoop-aws:([\d.]+)", block.text)}
    jars = [
        path.name for path in reader(GUIDE).folder.glob("venv/lib/*/site-packages/pyspark/jars/hadoop-client-api-*.jar")
    ]
    assert jars == [f"hadoop-client-api-{named}.jar"]


def test_every_block_of_a_guide_is_run() -> None:
    """All that is a program: policies and pictures have nothing to run."""
    programs = [block for document in GUIDES for block in blocks(document) if block.language in {"python", "sql"}]
    left = [program for program in programs if program.mark != SPARK]
    assert [each.place for each in left if not (each.mark == CHECKED and each.rest.startswith(NEEDS))] == []
