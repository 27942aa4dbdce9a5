import ast
import gc
from collections.abc import Iterator

import pytest

from tests.sources import parse_source

LARGE = "x = [" + "(1, 2), " * 20_000 + "]\n"


@pytest.fixture
def _collections_parse() -> Iterator[None]:
    """Have each garbage collection parse something, as another thread may at that moment."""

    def parse(*_: object) -> None:
        ast.parse("1")

    gc.callbacks.append(parse)
    yield
    gc.callbacks.remove(parse)


@pytest.mark.usefixtures("_collections_parse")
def test_a_source_is_parsed_whatever_a_garbage_collection_does() -> None:
    assert len(parse_source(LARGE).body) == 1
    assert gc.isenabled()
