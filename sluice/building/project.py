"""Where the files are that a deployment is made of: in a clone, or in an installed package, which has them as data.

What is built of them is kept: in a clone's `build`, else in the user's cache.
"""

import json
import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sluice.errors import BadConfiguration

DISTRIBUTION = "sluice-sqs"
PACKAGED = "project_files"  # of an installed package: what a clone has at its top


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
    """One set of such files."""

    files: Path  # what a clone has at its top: app.py, stacks, functions, spark, cdk.json, locks
    sources: Path  # holds the package `sluice`
    build: Path
    workspace: Path  # parameters' own files are named relative to it, and its cdk.json has parameters

    @classmethod
    def clone(cls, folder: Path) -> "Project":
        """Describe a clone."""
        return cls(files=folder, sources=folder, build=folder / "build", workspace=folder)

    @classmethod
    def of_package(cls, package: Path) -> "Project":
        """Describe what the package at this path is of. Installed, its workspace is where the program was started."""
        packaged = package / PACKAGED
        if not packaged.is_dir():
            return cls.clone(package.parent)
        from platformdirs import user_cache_path  # noqa: PLC0415 - a clone has no need of it

        here = Path.cwd()
        return cls(
            files=packaged,
            sources=package.parent,
            build=user_cache_path("sluice"),
            workspace=here if (here / "cdk.json").exists() else packaged,
        )

    @property
    def is_clone(self) -> bool:
        """Whether `make setup` installs what is needed, rather than its first user."""
        return self.files == self.sources

    @property
    def app(self) -> str:
        """The shell command of the CDK app, for any working directory."""
        return f"python {shlex.quote(str(self.files / 'app.py'))}"

    @property
    def lock(self) -> Path:
        """What each Python package is pinned to."""
        return self.files / "requirements.txt"

    @property
    def spark(self) -> Path:
        """The folder of the packages for Spark, and of the program that runs jobs."""
        return self.files / "spark"


def take_place(new: Path, folder: Path) -> None:
    """Rename `new`, which was made beside it, to `folder`, so that nobody sees half of a folder.

    Of two that are made at once, the first stays; the other is its maker's to remove.
    """
    try:
        new.rename(folder)
    except OSError:
        if not folder.exists():
            raise


PROJECT = Project.of_package(Path(__file__).parents[1])
