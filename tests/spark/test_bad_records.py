from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.log.bad_records import ERRORS, count_errors, remove_error_counts, write_error_count
from sluice_spark.log.planning import Offset, Position, Slice
from sluice_spark.log.store import FileStore


@pytest.fixture
def note(tmp_path: Path) -> Callable[..., None]:
    return lambda *part, errors, share=0: write_error_count(FileStore(tmp_path), Slice(*part), errors, share)


def test_a_task_tried_again_is_counted_once_and_shares_each(tmp_path: Path, note: Callable[..., None]) -> None:
    for share in (0, 0, 1):
        note(3, 0, 10, errors=2, share=share)
    note(3, 10, 20, errors=0)
    assert count_errors(FileStore(tmp_path), Position(0), Position(9)) == 4
    assert len(FileStore(tmp_path).list_names(ERRORS)) == 2


def test_what_is_counted_lies_between(tmp_path: Path, note: Callable[..., None]) -> None:
    for number in (1, 2, 3):
        note(number, 0, 5, errors=1)
        note(number, 5, 9, errors=10)
    assert count_errors(FileStore(tmp_path), Position(1, 5), Position(3)) == 21
    assert count_errors(FileStore(tmp_path), Position(3), Position(3)) == 0


def test_only_what_is_old_and_committed_is_forgotten(tmp_path: Path, note: Callable[..., None]) -> None:
    note(1, 0, 5, errors=1)
    note(2, 0, 5, errors=1)
    store = FileStore(tmp_path)
    remove_error_counts(store, Position(2), before_s=0.0)
    assert count_errors(store, Position(0), Position(9)) == 2
    remove_error_counts(store, Position(2), before_s=2.0**40)
    assert count_errors(store, Position(0), Position(9)) == 1


def test_what_others_put_beside_the_notes_is_passed_over(tmp_path: Path, note: Callable[..., None]) -> None:
    note(1, 0, 5, errors=1)
    for name in ("README.txt", "00000000000000000001-0-5-0-7.v1.part"):
        (tmp_path / ERRORS / name).touch()
    assert count_errors(FileStore(tmp_path), Position(0), Position(9)) == 1


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**20))
def test_an_offset_keeps_the_errors(errors: int, segment: int, row: int) -> None:
    offset = Offset(position=Position(1), errors=errors, errors_counted_to=Position(segment, row))
    assert Offset.parse(offset.json()) == offset
