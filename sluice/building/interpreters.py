"""Finds interpreters on this machine: the Python version that AWS runs functions with, and Node with npm packages.

The npm packages are the CDK's command line, and the compiler of Python bytecode for functions.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sluice.building.project import PROJECT, NotInstalled, install_command, move_into_place

LAMBDA_VERSION = "3.13"
INSTALL_TIMEOUT_S = 600
LISTS = ("package.json", "package-lock.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python interpreter on this machine."""

    path: Path
    version: str  # minor version, for example 3.13


def find_lambda_python() -> Interpreter:
    """Return the Python that `make setup` installed for functions, or else the running Python."""
    installed = PROJECT.build / f"python-{LAMBDA_VERSION}" / "bin" / f"python{LAMBDA_VERSION}"
    return Interpreter(path=installed, version=LAMBDA_VERSION) if installed.exists() else describe_this_python()


def describe_this_python() -> Interpreter:
    """Return the running Python interpreter."""
    return Interpreter(path=Path(sys.executable), version=f"{sys.version_info.major}.{sys.version_info.minor}")


def node() -> Path:
    """Return the path of Node, which a package from PyPI contains. Raises `NotInstalled`."""
    return _find_beside_python("node")


def cdk() -> Path:
    """Return the path of the CDK's command line. Raises `NotInstalled`."""
    return node_modules() / ".bin" / "cdk"


@cache
def node_modules() -> Path:
    """Return the folder of package.json's packages. Outside a clone npm installs these once. Raises `NotInstalled`."""
    of_clone = PROJECT.files / "node_modules"
    if PROJECT.is_clone:
        if not (of_clone / "ready").exists():
            raise NotInstalled(f"{of_clone} isn't complete: make setup")
        return of_clone
    lists = {name: (PROJECT.files / name).read_bytes() for name in LISTS}
    folder = PROJECT.build / f"node-{hashlib.sha256(b''.join(lists.values())).hexdigest()[:12]}"
    if not folder.exists():
        PROJECT.build.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".node-", dir=PROJECT.build) as place:
            new = Path(place) / "node"
            new.mkdir()
            for name in LISTS:
                shutil.copy(PROJECT.files / name, new)
            npm = [str(_find_beside_python("npm")), "ci", "--no-audit", "--no-fund", "--loglevel=error"]
            if error := run_tool(npm, timeout_s=INSTALL_TIMEOUT_S, folder=new):
                raise NotInstalled(f"npm can't install the CDK's command line: {error}")
            move_into_place(new, folder)
    return folder / "node_modules"


def run_tool(command: Sequence[str | Path], *, timeout_s: float, folder: Path | None = None) -> str:
    """Run a program that builds or installs something. Returns "" if it succeeded, its output if it failed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)  # noqa: S603 - our own arguments
    return f"exit code {done.returncode}:\n{done.stdout}{done.stderr}" if done.returncode else ""


def _find_beside_python(program: str) -> Path:
    path = Path(sys.executable).with_name(program)
    if not path.exists():
        raise NotInstalled(f"there is no {program} beside {sys.executable}: {install_command('deploy')}")
    return path
