"""The Python that the embedded cloud runs functions with: what the Lambda runtime preinstalls, and nothing else.

With the project's own environment instead, a bundle that lacks a package would work here and fail on AWS.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from sluice.folders import take_place

PREINSTALLED = "boto3"


def runtime_python(build: Path, lock: Path) -> Path:
    """Give the interpreter, made under `build` at the first call: about ten seconds, then none.

    `lock` is the project's requirements.txt, which fixes the versions.
    """
    pins = re.findall(r"^(?:boto3|botocore|s3transfer)==.*$", lock.read_text(), re.MULTILINE)
    key = hashlib.sha256("\n".join([sys.version, *pins]).encode()).hexdigest()[:12]
    folder = build / f"runtime-{key}"
    python = folder / "bin" / "python"
    if not python.exists():
        build.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".runtime-", dir=build) as place:
            unfinished = Path(place) / "runtime"
            venv.create(unfinished, with_pip=False, symlinks=True)
            pip = [sys.executable, "-m", "pip", "--python", str(unfinished / "bin" / "python")]
            install = [*pip, "--disable-pip-version-check", "install", "--quiet", "--constraint", str(lock)]
            subprocess.run([*install, PREINSTALLED], check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own arguments
            take_place(unfinished, folder)
    return python
