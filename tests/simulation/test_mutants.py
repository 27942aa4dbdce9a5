"""Deliberate breaks of the code, one a patch in `mutants`: the simulation finds each, or its checks check nothing.

A patch is named after the capability whose scenario finds it, and its first line says what it breaks.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
MUTANTS = sorted((Path(__file__).parent / "mutants").glob("*.patch"))
SEEDS = 400

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]


@pytest.mark.parametrize("patch", MUTANTS, ids=lambda patch: patch.stem)
def test_a_broken_tree_is_found_out(patch: Path, tmp_path: Path):
    for folder in ("sluice", "functions", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "stored", "corpus")
        shutil.copytree(PROJECT / folder, tmp_path / folder, ignore=ignored)
    subprocess.run(["git", "apply", "-C1", "--recount", str(patch)], cwd=tmp_path, check=True)
    program = "import sys; from tests.simulation.runs import first_failure; import sluice; "
    program += "failure = first_failure(sys.argv[1], range(int(sys.argv[2]))); print(sluice.__file__, failure)"
    capability = patch.stem.split("-")[0]
    found = subprocess.run(
        [sys.executable, "-c", program, capability, str(SEEDS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    file, _, failure = found.stdout.strip().partition(" ")
    assert Path(file).is_relative_to(tmp_path)
    assert failure.startswith("seed "), patch.read_text()
