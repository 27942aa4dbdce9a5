"""What the guides for Spark say is run, from the line that installs it on, in an environment that has nothing else."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.local.cloud import Cloud, start
from sluice.local.sites import Site
from tests.snippets.documents import SPARK, Block, Command, blocks, commands
from tests.wheels.conftest import ROOT, UV, Installed

GUIDE = ROOT / "docs" / "spark.md"
GUIDES = [GUIDE, ROOT / "spark" / "README.md"]
INSTALL = "pip install ./spark "
HERE = Site("123456789012", "eu-west-1")
WITHIN_S = 900


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Somebody who has typed the guide's line for installing, at the versions that are locked."""
    [typed] = {
        each.text.partition("  #")[0] for path in GUIDES for block in blocks(path) for each in shell_commands(block)
    }
    wanted = shlex.split(typed, comments=True)[2:]
    assert typed.startswith(INSTALL)
    folder = tmp_path_factory.mktemp("reader")
    made = Installed(python=folder / "venv" / "bin" / "python", folder=folder)
    subprocess.run([UV, "venv", "--quiet", "--python", sys._base_executable, folder / "venv"], check=True)  # type: ignore[attr-defined]  # what this one was made of
    locked = ["--constraint", f"spark/requirements-{version_of(wanted)}.txt", "--no-verify-hashes"]
    subprocess.run([UV, "pip", "install", "--quiet", "--python", made.python, *locked, *wanted], check=True, cwd=ROOT)
    return made


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    running = start(tmp_path / "cloud", ends_with_us=True)
    yield running
    running.stop()


def shell_commands(block: Block) -> list[Command]:
    return commands(block) if block.language == "sh" else []


def version_of(wanted: list[str]) -> str:
    [version] = [each.partition("==")[2] for each in wanted if each.startswith("pyspark==")]
    return version


def steps(document: Path) -> list[dict[str, str]]:
    marked = [block for block in blocks(document) if block.mark == SPARK]
    return [
        {"place": block.place, "language": block.language, "text": block.text, "situation": block.rest}
        for block in marked
    ]


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 60)
@pytest.mark.parametrize("document", GUIDES, ids=lambda path: path.name)
def test_a_guide_can_be_followed_from_its_first_block_to_its_last(
    document: Path, reader: Installed, cloud: Cloud, tmp_path: Path
) -> None:
    of_spark = {
        "PYSPARK_PYTHON": str(reader.python),
        "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2"
        f" --conf spark.sql.warehouse.dir={tmp_path}/warehouse --conf spark.driver.host=127.0.0.1 pyspark-shell",
    }
    done = subprocess.run(
        [reader.python, ROOT / "tests" / "wheels" / "guides.py", tmp_path],
        input=json.dumps(steps(document)),
        env=reader.environment | cloud.environment(HERE) | of_spark,
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
def test_the_guide_names_the_hadoop_that_spark_brings(reader: Installed) -> None:
    [named] = {found for block in blocks(GUIDE) for found in re.findall(r"hadoop-aws:([\d.]+)", block.text)}
    jars = [path.name for path in reader.folder.glob("venv/lib/*/site-packages/pyspark/jars/hadoop-client-api-*.jar")]
    assert jars == [f"hadoop-client-api-{named}.jar"]


def test_every_block_of_a_guide_is_run() -> None:
    """All that is a program: policies and pictures have nothing to run."""
    left = [
        each.place
        for document in GUIDES
        for each in blocks(document)
        if each.language in {"python", "sql"} and each.mark != SPARK
    ]
    assert not left
