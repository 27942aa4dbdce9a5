"""Files of the jobs on a local disk: `sluice.pipeline.tables.Files` in a folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import Malformed


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The files below a folder; a missing folder has none."""

    root: Path

    def names(self, folder: str, *, after: str = "") -> Sequence[str]:
        """See the port."""
        try:
            names = [path.name for path in (self.root / folder).iterdir() if path.is_file()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in names if name > after)

    def read(self, path: str) -> bytes:
        """See the port."""
        try:
            return (self.root / path).read_bytes()
        except OSError as error:
            raise Malformed(f"{path}: {error.strerror}") from error
