"""Finds the files from which a deployment is built: in a clone, or in an installed package, which has copies.

Build results are kept in a clone's `build`, or else in the user's cache.
"""

import json
import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sluice.errors import BadConfiguration

DISTRIBUTION = "sluice-sqs"
PACKAGED = "project_files"  # an installed package's folder with copies of top-level files


class NotInstalled(BadConfiguration):
    """A package or program that a command needs isn't installed. The error's text says how to install it."""


def require_modules(extra: str, *modules: str) -> None:
    """Raise `NotInstalled` if one of these modules, which `extra` installs, is missing."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise NotInstalled(f"{', '.join(missing)} isn't installed: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this package.

    In a clone the command is `make setup`, because no package index has `sluice-sqs`. Otherwise the command names the
    file or folder from which the package was installed, which the installer recorded (PEP 610), or else the wheel.
    """
    if PROJECT.is_clone:
        return "make setup"
    from importlib.metadata import distribution  # noqa: PLC0415 - 40 ms, for a message that is seldom written

    installed = distribution(DISTRIBUTION)
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    if "archive_info" in origin or "dir_info" in origin:
        return f"pip install '{DISTRIBUTION}[{extra}] @ {origin['url']}'"
    return f"pip install '{DISTRIBUTION.replace('-', '_')}-{installed.version}-py3-none-any.whl[{extra}]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The folders of one clone or installed package."""

    files: Path  # folder of app.py, cdk.json, locks, stacks, functions, spark
    sources: Path  # folder that contains the package `sluice`
    build: Path
    workspace: Path  # The user's cdk.json is here; parameters name files relative to here

    @classmethod
    def clone(cls, folder: Path) -> "Project":
        """Return the folders of a clone."""
        return cls(files=folder, sources=folder, build=folder / "build", workspace=folder)

    @classmethod
    def of_package(cls, package: Path) -> "Project":
        """Return the folders of a clone, or of an installation, whose workspace is the working directory."""
        packaged = package / PACKAGED
        if not packaged.is_dir():
            return cls.clone(package.parent)
        from platformdirs import user_cache_path  # noqa: PLC0415 - a clone doesn't need it

        here = Path.cwd()
        return cls(
            files=packaged,
            sources=package.parent,
            build=user_cache_path("sluice"),
            workspace=here if (here / "cdk.json").exists() else packaged,
        )

    @property
    def is_clone(self) -> bool:
        """Whether this is a clone, where `make setup` installs the tools. Elsewhere commands install the tools."""
        return self.files == self.sources

    @property
    def cdk_app_command(self) -> str:
        """The shell command that runs the CDK app. It works in any working directory."""
        return f"python {shlex.quote(str(self.files / 'app.py'))}"

    @property
    def lock_file(self) -> Path:
        """The path of the file with the pinned versions of all Python packages."""
        return self.files / "requirements.txt"

    @property
    def spark_folder(self) -> Path:
        """The folder of the packages for Spark, and of the program that runs jobs."""
        return self.files / "spark"


def move_into_place(new_folder: Path, folder: Path) -> None:
    """Rename `new_folder` to `folder`, in the same parent folder, so that no process sees an incomplete folder.

    If `folder` exists already, it stays, and the caller must remove `new_folder`.
    """
    try:
        new_folder.rename(folder)
    except OSError:
        if not folder.exists():
            raise


PROJECT = Project.of_package(Path(__file__).parents[1])
