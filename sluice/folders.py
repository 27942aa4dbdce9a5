"""Folders that are made beside their place and then take it, so that nobody sees half of one."""

from pathlib import Path


def take_place(new: Path, folder: Path) -> None:
    """Rename `new` to `folder`. Of two that are made at once, the first stays; the other is its maker's to remove."""
    try:
        new.rename(folder)
    except OSError:
        if not folder.exists():
            raise
