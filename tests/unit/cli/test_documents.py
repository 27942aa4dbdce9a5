"""Files in JSON and YAML: what is nested too deep is refused alike, however deep the caller's own stack is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.cli.documents import MAX_DEPTH, BadFile, documents_of_text, located_document_of_file

DEEPER = 2 * MAX_DEPTH
CALLERS = [0, 400]  # frames between the test and the call


def call_from(frames: int, call: Callable[[], object]) -> object:
    return call() if frames == 0 else call_from(frames - 1, call)


@pytest.mark.parametrize("frames", CALLERS)
@pytest.mark.parametrize("suffix", ["json", "yaml"])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a": ', "}")])
def test_a_text_is_read_to_the_greatest_depth_and_refused_below(
    suffix: str, opening: str, closing: str, frames: int
) -> None:
    file = Path(f"nested.{suffix}")

    def read(depth: int) -> object:
        return documents_of_text(opening * depth + "1" + closing * depth, file)

    call_from(frames, lambda: read(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, DEEPER):
        with pytest.raises(BadFile, match=f"nested.{suffix}: nested deeper than {MAX_DEPTH}"):
            call_from(frames, lambda depth=depth: read(depth))  # type: ignore[misc]


@pytest.mark.parametrize("frames", CALLERS)
def test_a_file_that_is_nested_too_deep_is_refused_with_the_line(frames: int, tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text("tag: eu\nsites: " + "[" * 50_000)
    with pytest.raises(BadFile, match=rf"nested deeper than {MAX_DEPTH}.* line 2"):
        call_from(frames, lambda: located_document_of_file(file))
