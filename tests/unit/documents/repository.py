"""The repository's files, for the tests of what is in all of them."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]


def tracked_files(root: Path) -> Sequence[str]:
    """List the files that git tracks, or all but the ignored ones where the sources are unpacked without git."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
    if not listed.returncode and listed.stdout:
        return [name.decode() for name in listed.stdout.split(b"\0") if name]
    lines = (root / ".gitignore").read_text().splitlines()
    at_its_place = {root / line.strip("/") for line in lines if line.startswith("/")}
    anywhere = [line.strip("/") for line in lines if not line.startswith("/")]
    return [
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file()
        and not at_its_place & {path, *path.parents}
        and not any(part.match(pattern) for part in (path, *path.parents) for pattern in anywhere)
    ]
