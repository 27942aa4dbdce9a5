"""Cloud assemblies of the stacks: one for each set of parameters and sources, kept for the next that wants it.

A synth reads the project's files and its context and nothing else, so that equal ones needn't be made again.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sluice.building.interpreters import lambda_python
from sluice.building.project import PROJECT, Project

FOLDER = PROJECT.build / "assemblies"
SETTINGS = (
    "app.py",
    "cdk.json",
    "cdk.context.json",
    "pyproject.toml",
    "requirements.txt",
    "package.json",
    "package-lock.json",
)
NO_SOURCE = frozenset({"__pycache__", "build", "node_modules"})
MAKES = ("aws-cdk-lib", "cdk-nag", "constructs", "jsii")  # what of the environment's packages is in templates
KEPT, KEPT_S = 8, 3600  # the newest, and those that somebody may be deploying
KEY_CHARACTERS = 32
STACK_ARTIFACT = "aws:cloudformation:stack"
TOOLKIT = "CDKToolkit"


@dataclass(frozen=True)
class Assembly:
    """One that has been made, in its folder."""

    folder: Path

    @cached_property
    def digest(self) -> str:
        """Give what changes with anything that a deployment of it would change."""
        described = hashlib.sha256()
        for path in sorted(self.folder.glob("*.json")):
            # The tree is for people and has constructs' paths; assets are named by what is in them.
            if path.name not in {"tree.json", "validation-report.json"}:
                described.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return described.hexdigest()

    @cached_property
    def stacks(self) -> Mapping[str, Mapping[str, Any]]:
        """Read the stacks' properties, by their names, in the order in which they can be deployed."""
        artifacts = json.loads((self.folder / "manifest.json").read_text())["artifacts"]
        stacks = ((id_, each["properties"]) for id_, each in artifacts.items() if each["type"] == STACK_ARTIFACT)
        return {properties.get("stackName", id_): properties for id_, properties in stacks}

    @property
    def bootstrap_version(self) -> int:
        """The least that these stacks need."""
        return max((each.get("requiresBootstrapStackVersion", 0) for each in self.stacks.values()), default=0)


def key_of(context: Mapping[str, str], *, project: Project = PROJECT) -> str:
    """Give what changes with all that a synth with this context reads, the files that it names among them."""
    python = lambda_python()
    known = hashlib.sha256(repr((sorted(context.items()), python.version, str(python.path))).encode())
    known.update(repr([(name, version(name)) for name in MAKES]).encode())
    for path in _read_by_synth(context, project):
        known.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
    return known.hexdigest()[:KEY_CHARACTERS]


def find(key: str, folder: Path = FOLDER) -> Assembly | None:
    """Find the one of a key; None where it has to be made."""
    place = folder / key
    try:
        os.utime(place)  # it is wanted: others go before it
    except FileNotFoundError:
        return None
    return Assembly(place)


def forget_old(folder: Path = FOLDER) -> None:
    """Delete those that nobody has wanted for long, but for the newest few."""
    wanted_at = dict[Path, float]()
    for place in folder.iterdir():
        with suppress(FileNotFoundError):  # another process has renamed or deleted it
            wanted_at[place] = place.stat().st_mtime
    for place in sorted(wanted_at, key=lambda place: wanted_at[place], reverse=True)[KEPT:]:
        if time.time() - wanted_at[place] > KEPT_S:
            shutil.rmtree(place, ignore_errors=True)


def _read_by_synth(context: Mapping[str, str], project: Project) -> Iterator[Path]:
    rooms = (project.sources / "sluice", project.files / "functions", project.files / "stacks", project.spark)
    for room in rooms:
        for folder, folders, files in os.walk(room):
            folders[:] = sorted(each for each in folders if each not in NO_SOURCE and not each.endswith(".egg-info"))
            yield from (Path(folder, file) for file in sorted(files))
    others = [folder / name for folder in dict.fromkeys((project.files, project.workspace)) for name in SETTINGS]
    others.append(Path.home() / ".cdk.json")
    named = [project.workspace / text for text in context.values() if text]
    # Most values name no file, and some are too long to name one, of which pathlib would raise an error.
    yield from (path for path in (*others, *named) if os.path.isfile(path))  # noqa: PTH113
