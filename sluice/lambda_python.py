"""The Python that AWS runs functions with: its version, and its interpreter on this machine."""

import sys
from dataclasses import dataclass
from pathlib import Path

from sluice.project import PROJECT

VERSION = "3.13"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """One on this machine."""

    path: Path
    version: str  # 3.13


def lambda_python() -> Interpreter:
    """Give what `make setup` installed; where it couldn't, the interpreter that runs this."""
    installed = PROJECT.build / f"python-{VERSION}" / "bin" / f"python{VERSION}"
    return Interpreter(path=installed, version=VERSION) if installed.exists() else this_python()


def this_python() -> Interpreter:
    """Give the interpreter that runs this."""
    return Interpreter(path=Path(sys.executable), version=f"{sys.version_info.major}.{sys.version_info.minor}")
