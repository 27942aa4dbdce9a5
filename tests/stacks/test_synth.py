"""The assembly as a whole: equal every time, and as it was when somebody last looked at it.

After a change that is meant, write the snapshot anew and read its difference:
`SLUICE_WRITE_SNAPSHOT=1 python -m pytest tests/stacks/test_synth.py`
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stacks.conftest import CONTEXT, PROJECT, Templates

SNAPSHOT = Path(__file__).parent / "snapshot.json"
WRITE = "SLUICE_WRITE_SNAPSHOT"
NODE_PATH = str(Path(sys.executable).parent)  # jsii finds the project's Node on it
UNLIKELY = {
    "AWS_REGION": "mars-north-1",
    "AWS_PROFILE": "nobody",
    "CDK_DEFAULT_ACCOUNT": "111111111111",
    "CDK_DEFAULT_REGION": "mars-north-1",
    "SOURCE_DATE_EPOCH": "1",
    "TZ": "Asia/Tokyo",
}


def run_app(outdir: Path, *, project: Path = PROJECT, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as the CDK command line starts it."""
    said = {"CDK_OUTDIR": str(outdir), "CDK_CONTEXT_JSON": json.dumps(CONTEXT), "CDK_VALIDATION": "false"}
    given = {"PATH": NODE_PATH, **said, **environment}
    return subprocess.run(
        [sys.executable, "app.py"], cwd=project, env=given, capture_output=True, text=True, check=False
    )


def synthesize(outdir: Path, *, project: Path = PROJECT, **environment: str) -> Path:
    done = run_app(outdir, project=project, **environment)
    assert done.returncode == 0, done.stderr
    return outdir


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
def test_another_clone_gives_the_same_bytes_whatever_the_environment(layer: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for part in ("functions", "sluice", "spark", "stacks"):
        shutil.copytree(PROJECT / part, clone / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("app.py", "package.json", "pyproject.toml", "requirements.txt"):
        shutil.copy(PROJECT / part, clone)
    (clone / "node_modules").symlink_to(PROJECT / "node_modules")
    unfinished = shutil.ignore_patterns(".*")  # somebody else may be building right now
    for part in ("bundles", "spark-archives"):
        shutil.copytree(PROJECT / "build" / part, clone / "build" / part, ignore=unfinished)
    ours = digests(synthesize(tmp_path / "ours"))
    assert len(ours) > 100
    assert digests(synthesize(tmp_path / "theirs", project=clone, **UNLIKELY)) == ours


def test_a_bad_parameter_is_said_in_one_line(tmp_path: Path) -> None:
    context = {**CONTEXT, "sluice.rendezvous.held_proxies_max": "many"}
    done = run_app(tmp_path, CDK_CONTEXT_JSON=json.dumps(context))
    assert done.returncode == 1
    said = "parameter sluice.rendezvous.held_proxies_max: 'many' is not a whole number from 1 to 10000\n"
    assert done.stderr == said


def normalized(templates: Templates) -> Any:
    """The templates, without the hashes of assets, which change with every line of code."""
    stacks = {
        "SluiceState": templates.state,
        "SluiceRendezvous": templates.rendezvous,
        "SluiceSplitting": templates.splitting,
        "SluicePipeline": templates.pipeline,
    }
    text = json.dumps(stacks)
    return json.loads(re.sub(r"\b[0-9a-f]{64}\b", "HASH", text))


def test_the_templates_are_as_they_were(templates: Templates) -> None:
    found = normalized(templates)
    if os.environ.get(WRITE):
        SNAPSHOT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if not SNAPSHOT.exists():
        pytest.fail(f"no snapshot: {WRITE}=1 writes it")
    assert found == json.loads(SNAPSHOT.read_text())
