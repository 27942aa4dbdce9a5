"""The tables of `own-log` as the land job that wrote them left them.

Their files' names hold partition values that some file systems and archives can't have, so the repository keeps these
files as `files/00.parquet` and so on. `names.json` there maps them to the names that the tables' logs have.
"""

import json
import shutil
from pathlib import Path

OWN_LOG = Path(__file__).parent / "own-log"


def copy_tables(folder: Path) -> None:
    """Copy tables and quarantine into a folder, with their files under their own names."""
    shutil.copytree(OWN_LOG, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("files"))
    for kept, name in json.loads((OWN_LOG / "files" / "names.json").read_text()).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(OWN_LOG / "files" / kept, folder / name)
