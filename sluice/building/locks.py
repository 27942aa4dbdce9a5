"""The project's locks: each package's pinned version, the hashes of its files, and the packages that need it.

`python -m sluice.building.locks --extra EXTRA … PYPROJECT < LOCK` prints the pins of a project's given extras. The
command runs before anything is installed, so this module uses only the standard library.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import BadConfiguration

PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\]+?))?(?: \\)?$")
HASH = re.compile(r"^ +--hash=(?P<hash>sha256:[0-9a-f]{64})(?: \\)?$")
VIA = re.compile(r"^ +#(?: {3}| via )(?P<name>[A-Za-z0-9._-]+)")


class NotPinned(BadConfiguration):
    """The lock has no pin for a required package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A package in the lock, with normalized name. `marker` is its environment marker, "" for none."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    needed_by: frozenset[str]

    def __str__(self) -> str:
        """Format the pin as text for a requirements file with hashes, as pip's `--require-hashes` expects."""
        condition = f" ; {self.marker}" if self.marker else ""
        return " ".join([f"{self.name}=={self.version}{condition}", *(f"--hash={hash_}" for hash_ in self.hashes)])


def resolve_pins(requirements: Collection[str], lock: str, *, without: Collection[str] = ()) -> tuple[Pin, ...]:
    """List the pins of requirements and their dependencies, except those in `without`, sorted by name.

    `lock` is the text of uv's lock file, whose comments name the packages that need a package. Raises `NotPinned`.
    """
    pins = parse_lock(lock)
    required = {normalize_name(requirement_name(requirement)) for requirement in requirements}
    while (
        more := {pin.name for pin in pins.values() if pin.needed_by & required and pin.name not in without} - required
    ):
        required |= more
    for name in sorted(required - pins.keys()):
        raise NotPinned(f"the lock doesn't pin {name}: run `make lock`")
    return tuple(pins[name] for name in sorted(required))


def parse_lock(lock: str) -> Mapping[str, Pin]:
    """Parse a lock's text into pins, by package name."""
    pins: dict[str, Pin] = {}
    for entry in re.split(r"\n(?=[A-Za-z0-9])", lock):
        first, *rest = entry.splitlines() or [""]
        if pin := PIN.match(first):
            name = normalize_name(pin["name"])
            pins[name] = Pin(
                name=name,
                version=pin["version"],
                marker=pin["marker"] or "",
                hashes=tuple(match["hash"] for match in map(HASH.match, rest) if match),
                needed_by=frozenset(normalize_name(match["name"]) for match in map(VIA.match, rest) if match),
            )
    return pins


def requirement_name(requirement: str) -> str:
    """Return the package name in a requirement, for example `jq` for `jq>=1.8; python_version > '3'`."""
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def normalize_name(name: str) -> str:
    """Normalize a package's name: https://packaging.python.org/en/latest/specifications/name-normalization/."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Print the pins of a project and of the given extras, from the lock on stdin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pyproject", type=Path, help="the project's pyproject.toml")
    parser.add_argument("--extra", action="append", default=[], help="an extra of the project")
    parser.add_argument("--package", action="append", default=[], help="a package that the project doesn't name")
    arguments = parser.parse_args()
    project = tomllib.loads(arguments.pyproject.read_text())["project"]
    extras = [project["optional-dependencies"][extra] for extra in arguments.extra]
    required = [
        *project["dependencies"],
        *(requirement for extra in extras for requirement in extra),
        *arguments.package,
    ]
    print(*resolve_pins(required, sys.stdin.read()), sep="\n")  # noqa: T201 - to the file that pip reads


if __name__ == "__main__":
    main()
