"""Both packages as they are published, and environments into which nothing but them was installed."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.local.cloud import clean_environment

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
OF_THIS_CLONE = ("PYTHONPATH", "VIRTUAL_ENV", "SLUICE_LOCAL_FOLDER")


@dataclass(frozen=True)
class Installed:
    """An environment, and a folder of its user's; what is built there lies in a cache that begins empty."""

    python: Path
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What its user's programs have."""
        kept = {name: value for name, value in clean_environment().items() if name not in OF_THIS_CLONE}
        system = os.pathsep.join(each for each in kept["PATH"].split(os.pathsep) if not each.startswith(str(ROOT)))
        return kept | {
            "PATH": f"{self.python.parent}{os.pathsep}{system}",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "AWS_EC2_METADATA_DISABLED": "true",
            "COLUMNS": "80",
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment in its user's folder."""
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Built from the source distributions, which are built from this clone: by package."""
    folder = tmp_path_factory.mktemp("dist")
    for project in (ROOT, ROOT / "spark"):
        subprocess.run([UV, "build", "--quiet", "--out-dir", folder, project], check=True)
    return {path.name.split("-")[0]: path for path in folder.glob("*.whl")}


@pytest.fixture(scope="session")
def install(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Callable[..., Installed]:
    """Makes an environment of requirements, of ours the wheels, at the versions that are locked."""

    def installed(*requirements: str) -> Installed:
        folder = tmp_path_factory.mktemp("user")
        made = Installed(python=folder / "venv" / "bin" / "python", folder=folder)
        subprocess.run([UV, "venv", "--quiet", "--python", sys._base_executable, folder / "venv"], check=True)  # type: ignore[attr-defined]  # what this one was made of
        own = {requirement: wheels.get(requirement.partition("[")[0].replace("-", "_")) for requirement in requirements}
        wanted = [f"{each} @ {wheel.as_uri()}" if wheel else each for each, wheel in own.items()]
        locks = (ROOT / "requirements.txt", ROOT / "spark" / "requirements.txt")
        versions = [*(f"--constraint={lock}" for lock in locks), "--no-verify-hashes"]
        subprocess.run([UV, "pip", "install", "--quiet", "--python", made.python, *versions, *wanted], check=True)
        return made

    return installed
