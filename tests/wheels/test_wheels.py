"""What is installed from the packages alone does what a clone does, and says which extra it lacks."""

import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from sluice.console.server import STATIC
from tests.snippets.documents import blocks
from tests.snippets.run import PASSED, TRIED, Reader
from tests.wheels.conftest import ROOT, Installed

SPARK = "4.1.1"  # the tutorial's
OF_A_CLONE = ". .venv/bin/activate"  # the other way to set up
COMMANDS = 15  # of the tutorial, at least


@pytest.fixture(scope="module")
def base(install: Callable[..., Installed]) -> Installed:
    return install("sluice-sqs")


@pytest.fixture(scope="module")
def local(install: Callable[..., Installed]) -> Installed:
    return install("sluice-sqs[local,webrtc]", "deltalake")


@pytest.fixture(scope="module")
def toured(local: Installed, install: Callable[..., Installed], tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Somebody who has followed the tutorial to its end, with nothing but the packages."""
    spark = install("sluice-spark[jobs]", f"pyspark=={SPARK}")
    environment = local.environment | {"SLUICE_SPARK_PYTHON": str(spark.python)}
    reader = Reader(tmp_path_factory.mktemp("tutorial"), environment)
    try:
        reader.read([block for block in blocks(ROOT / "docs" / "tutorial.md") if OF_A_CLONE not in block.text])
    finally:
        reader.close()
        local.run("sluice", "local", "down")
    return reader


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_a_wheel_has_one_package_with_types_and_what_is_deployed(wheels: dict[str, Path]) -> None:
    found = names(wheels["sluice_sqs"])
    assert {name.split("/")[0] for name in found} == {"sluice", f"sluice_sqs-{version('sluice-sqs')}.dist-info"}
    packaged = {"app.py", "stacks/template.py", "functions/broker/handler.py", "spark/sluice_job.py"}
    packaged |= {"cdk.json", "package-lock.json", "pyproject.toml", "requirements.txt"}
    assert {"sluice/py.typed", *(f"sluice/project_files/{name}" for name in packaged)} <= found
    assert {path.relative_to(ROOT).as_posix() for path in STATIC.rglob("*") if path.is_file()} <= found
    assert not [name for name in found if name.startswith("sluice/demo") or "__pycache__" in name]


def test_sparks_wheel_has_types(wheels: dict[str, Path]) -> None:
    assert {"sluice_spark/py.typed", "sluice_spark/__init__.py"} <= names(wheels["sluice_spark"])


@pytest.mark.parametrize("package", ["sluice_sqs", "sluice_spark"])
def test_a_wheel_says_what_it_is_and_under_which_licence(wheels: dict[str, Path], package: str) -> None:
    with zipfile.ZipFile(wheels[package]) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = archive.read(metadata).decode()
    for field in ("Classifier: Typing :: Typed", "License-Expression: Apache-2.0"):
        assert f"\n{field}" in said
    assert "\nDescription-Content-Type: text/markdown" in said
    assert "\nProject-URL:" not in said  # it isn't published anywhere


def test_every_command_can_be_asked_for_help_without_extras(base: Installed) -> None:
    program = (
        "import typer.main; from sluice.cli.program import app\n"
        "def walk(command, *path):\n"
        "    for name, each in getattr(command, 'commands', {}).items(): walk(each, *path, name)\n"
        "    try: command.main([*path[1:], '--help'][-1:], prog_name=' '.join(path))\n"
        "    except SystemExit as error: assert not error.code\n"
        "walk(typer.main.get_command(app), 'sluice')\n"
    )
    done = base.run(str(base.python), "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: sluice") > 50


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("local up", "local"),
        ("deploy --region eu-central-1", "deploy"),
        ("rendezvous offer --region eu-central-1", "webrtc"),
        ("rendezvous proxy --region eu-central-1", "webrtc"),
        ("console --region eu-central-1", "console"),
        ("split agent --cluster theirs --region eu-central-1", "kubernetes"),
    ],
)
def test_who_lacks_an_extra_is_told_which_and_where_the_package_is_from(
    base: Installed, wheels: dict[str, Path], command: str, extra: str
) -> None:
    done = base.run("sluice", *command.split())
    assert done.returncode == 1
    requirement = f"sluice-sqs[{extra}] @ {wheels['sluice_sqs'].as_uri()}"
    assert shlex.join(["pip", "install", requirement]) in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_tutorial_goes_to_its_end(toured: Reader) -> None:
    assert not toured.failures, "\n\n".join(toured.failures)
    assert toured.counts[PASSED] == toured.counts[TRIED] > COMMANDS


@pytest.mark.slow
def test_a_package_makes_the_templates_and_assets_that_a_clone_makes(
    install: Callable[..., Installed], tmp_path: Path
) -> None:
    """From a folder without a cdk.json. What is the same for both isn't built anew: third-party code, by its pins."""
    deploying = install("sluice-sqs[deploy]")
    build = Path(deploying.environment["XDG_CACHE_HOME"]) / "sluice"
    for folder in ("bundles", "spark-archives"):
        # Another suite may be building: what isn't finished has a name that begins with a dot.
        if (ROOT / "build" / folder).exists():
            shutil.copytree(ROOT / "build" / folder, build / folder, ignore=shutil.ignore_patterns(".*"))
    located = deploying.run(
        str(deploying.python), "-c", "from sluice.building.project import PROJECT; print(PROJECT.cdk_app_command)"
    )
    command = shlex.split(located.stdout)
    assert command[1].endswith("/sluice/project_files/app.py")
    context = json.loads((ROOT / "cdk.json").read_text())["context"]
    said = {"CDK_CONTEXT_JSON": json.dumps(context), "CDK_VALIDATION": "false"}
    for python, app, folder, environment in (
        (deploying.python, command[1], "package", deploying.environment),
        (sys.executable, "app.py", "clone", {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}),
    ):
        subprocess.run(
            [python, app],
            cwd=deploying.folder if folder == "package" else ROOT,
            env={**environment, **said, "CDK_OUTDIR": str(tmp_path / folder)},
            check=True,
        )
    assert digests(tmp_path / "package") == digests(tmp_path / "clone")


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
