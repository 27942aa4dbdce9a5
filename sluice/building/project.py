"""Finds the files that a deployment is built from: in a clone, or in an installed package, which has them as data.

Build results are kept in a clone's `build`, or else in the user's cache.
"""

import json
import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sluice.errors import BadConfiguration

DISTRIBUTION = "sluice-sqs"
PACKAGED = "project_files"  # in an installed package: the files at a clone's top


class NotInstalled(BadConfiguration):
    """Something that a command needs isn't installed. The text says how to install it."""


def need(extra: str, *modules: str) -> None:
    """Raise `NotInstalled` if a module is missing that this extra of the package brings."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise NotInstalled(f"{', '.join(missing)} isn't installed: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this package.

    No package index has `sluice-sqs`, so in a clone it is `make setup`. An installed package names the file or folder
    that it was installed from, which its installer recorded (PEP 610), or else its wheel.
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

    files: Path  # the files at a clone's top: app.py, stacks, functions, spark, cdk.json, locks
    sources: Path  # holds the package `sluice`
    build: Path
    workspace: Path  # file names in parameters are relative to it, and its cdk.json has the parameters

    @classmethod
    def clone(cls, folder: Path) -> "Project":
        """Describe a clone."""
        return cls(files=folder, sources=folder, build=folder / "build", workspace=folder)

    @classmethod
    def of_package(cls, package: Path) -> "Project":
        """Describe the clone or installation of a package. An installation's workspace is the working directory."""
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
        """Whether `make setup` installs the tools. If not, the first command that needs a tool installs it."""
        return self.files == self.sources

    @property
    def app(self) -> str:
        """The shell command of the CDK app, for any working directory."""
        return f"python {shlex.quote(str(self.files / 'app.py'))}"

    @property
    def lock(self) -> Path:
        """The file that pins each Python package."""
        return self.files / "requirements.txt"

    @property
    def spark(self) -> Path:
        """The folder of the packages for Spark, and of the program that runs jobs."""
        return self.files / "spark"


def take_place(new: Path, folder: Path) -> None:
    """Rename `new`, a folder in the same parent, to `folder`, so that no process sees an incomplete folder.

    If `folder` exists already, it stays, and the caller has to remove `new`.
    """
    try:
        new.rename(folder)
    except OSError:
        if not folder.exists():
            raise


PROJECT = Project.of_package(Path(__file__).parents[1])
