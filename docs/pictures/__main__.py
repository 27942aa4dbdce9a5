"""Write each picture, as SVG for light and dark. Equal code gives equal bytes, so a test compares them."""

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.pictures import landing, matching, splitting, topology

FOLDER = Path(__file__).parent
PICTURES: Mapping[str, Callable[[], str]] = {
    "topology.svg": topology.drawn,
    "splitting.svg": splitting.drawn,
    "matching.svg": matching.drawn,
    "landing.svg": landing.drawn,
}


def write() -> None:
    """Write them all."""
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    write()
