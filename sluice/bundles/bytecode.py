"""Bytecode for the Python that Lambda runs, which need not be on this machine.

Compiled by CPython in WebAssembly, from npm: one pinned compiler on every machine, so that equal sources give equal
bytes. Native interpreters differ even within a minor version. Sources aren't looked at when it is loaded.
"""

import json
import subprocess
from pathlib import Path

from sluice.errors import BadConfiguration
from sluice.node import modules, node
from sluice.project import PROJECT

PROGRAM = Path(__file__).with_suffix(".mjs")
TIMEOUT_S = 300


class NotCompiled(BadConfiguration):
    """A folder can't be compiled; the text is the compiler's."""


def compiler() -> str:
    """Name what compiles, with its version."""
    packages = json.loads((PROJECT.files / "package.json").read_text())["devDependencies"]
    return f"pyodide {packages['pyodide']}"


def compile_folder(folder: Path, deployed_at: str) -> None:
    """Put each module's bytecode beside it, with the paths that it has where it is deployed. Raises `NotCompiled`."""
    done = subprocess.run(  # noqa: S603 - our own arguments
        [node(), PROGRAM, folder, deployed_at, modules()],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise NotCompiled(f"{compiler()} can't compile {folder}:\n{done.stdout}{done.stderr}")
