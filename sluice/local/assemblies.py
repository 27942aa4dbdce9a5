"""A cache of cloud assemblies, one for each set of parameters and sources.

A synth reads only the project's files and its context, so equal inputs give an equal assembly.
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

from sluice.building.interpreters import find_lambda_python
from sluice.building.project import PROJECT, Project

FOLDER = PROJECT.build / "assemblies"
SETTINGS_FILES = (
    "app.py",
    "cdk.json",
    "cdk.context.json",
    "pyproject.toml",
    "requirements.txt",
    "package.json",
    "package-lock.json",
)
IGNORED_FOLDERS = frozenset({"__pycache__", "build", "node_modules"})
SYNTH_PACKAGES = ("aws-cdk-lib", "cdk-nag", "constructs", "jsii")  # The cache key contains these packages' versions.
MIN_CACHED, CACHED_FOR_S = 8, 3600  # The newest assemblies, and those used in the last hour, are kept.
KEY_CHARACTERS = 32
STACK_ARTIFACT = "aws:cloudformation:stack"
TOOLKIT = "CDKToolkit"


@dataclass(frozen=True)
class Assembly:
    """A synthesized cloud assembly in its folder."""

    folder: Path

    @cached_property
    def digest(self) -> str:
        """A digest of all files of the assembly that influence a deployment."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.glob("*.json")):
            # tree.json is only for display. Assets are not digested: their names contain hashes of their content.
            if path.name not in {"tree.json", "validation-report.json"}:
                digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()

    @cached_property
    def stacks(self) -> Mapping[str, Mapping[str, Any]]:
        """The stacks' properties by stack name, in an order in which stacks can be deployed."""
        artifacts = json.loads((self.folder / "manifest.json").read_text())["artifacts"]
        stacks = (
            (id_, artifact["properties"]) for id_, artifact in artifacts.items() if artifact["type"] == STACK_ARTIFACT
        )
        return {properties.get("stackName", id_): properties for id_, properties in stacks}

    @property
    def bootstrap_version(self) -> int:
        """The lowest bootstrap version that the stacks accept."""
        return max((stack.get("requiresBootstrapStackVersion", 0) for stack in self.stacks.values()), default=0)


def compute_assembly_key(context: Mapping[str, str], *, project: Project = PROJECT) -> str:
    """Return a digest of everything that a synth reads: sources, context, and the files that the context names."""
    python = find_lambda_python()
    digest = hashlib.sha256(repr((sorted(context.items()), python.version, str(python.path))).encode())
    digest.update(repr([(name, version(name)) for name in SYNTH_PACKAGES]).encode())
    for path in _synth_inputs(context, project):
        digest.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:KEY_CHARACTERS]


def find_cached(key: str, folder: Path = FOLDER) -> Assembly | None:
    """Return the cached assembly of a key; None if it isn't cached."""
    place = folder / key
    try:
        os.utime(place)  # The modification time is the time of the last use.
    except FileNotFoundError:
        return None
    return Assembly(place)


def delete_old_assemblies(folder: Path = FOLDER) -> None:
    """Delete cached assemblies that were not used for CACHED_FOR_S seconds, except the MIN_CACHED newest."""
    used_at = dict[Path, float]()
    for place in folder.iterdir():
        with suppress(FileNotFoundError):  # Another process has renamed or deleted the folder.
            used_at[place] = place.stat().st_mtime
    for place in sorted(used_at, key=lambda place: used_at[place], reverse=True)[MIN_CACHED:]:
        if time.time() - used_at[place] > CACHED_FOR_S:
            shutil.rmtree(place, ignore_errors=True)


def _synth_inputs(context: Mapping[str, str], project: Project) -> Iterator[Path]:
    rooms = (project.sources / "sluice", project.files / "functions", project.files / "stacks", project.spark_folder)
    for room in rooms:
        for folder, folders, files in os.walk(room):
            folders[:] = sorted(
                name for name in folders if name not in IGNORED_FOLDERS and not name.endswith(".egg-info")
            )
            yield from (Path(folder, file) for file in sorted(files))
    others = [folder / name for folder in dict.fromkeys((project.files, project.workspace)) for name in SETTINGS_FILES]
    others.append(Path.home() / ".cdk.json")
    named = [project.workspace / text for text in context.values() if text]
    # Most context values are not file names, and some are so long that pathlib would raise an error.
    yield from (path for path in (*others, *named) if os.path.isfile(path))  # noqa: PTH113
