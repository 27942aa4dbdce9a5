"""What sites held, minute by minute, in memory and in a file."""

import sqlite3
import stat
from pathlib import Path

import pytest

from sluice.console.history import KEPT_MINUTES, BadHistory, History
from sluice.times import MINUTE_MS

NOW = 100_000 * MINUTE_MS + 5_000


def test_a_minute_has_its_largest_value_and_one_that_nobody_saw_has_none() -> None:
    history = History.at()
    for value, minutes_ago in ((3.0, 2), (7.0, 0), (5.0, 0)):
        history.note("here", {"splitting waiting": value, "splitting dead": None}, at_ms=NOW - minutes_ago * MINUTE_MS)
    assert history.series("here", "splitting waiting", at_ms=NOW, minutes=4) == [None, 3.0, None, 7.0]
    assert history.series("here", "splitting dead", at_ms=NOW, minutes=2) == [None, None]
    assert history.series("there", "splitting waiting", at_ms=NOW, minutes=1) == [None]


def test_a_file_has_it_the_next_time_and_is_nobody_elses_to_read(tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    first = History.at(file)
    first.note("here", {"dead": 2.0}, at_ms=NOW)
    first.close()
    assert History.at(file).series("here", "dead", at_ms=NOW, minutes=1) == [2.0]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_is_older_than_a_week_is_forgotten() -> None:
    history = History.at()
    history.note("here", {"dead": 2.0}, at_ms=NOW)
    later = NOW + (KEPT_MINUTES + 1) * MINUTE_MS
    history.note("here", {"dead": 3.0}, at_ms=later)
    assert history.series("here", "dead", at_ms=NOW, minutes=1) == [None]


def test_a_file_that_is_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    text, database = tmp_path / "notes.txt", tmp_path / "other.db"
    text.write_text("these are notes, and no database " * 100)
    other = sqlite3.connect(database)
    other.execute("CREATE TABLE letters (id)")
    other.commit()
    for file in (text, database, tmp_path / "no" / "such" / "folder"):
        with pytest.raises(BadHistory):
            History.at(file)
    assert text.read_text().startswith("these are notes")
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version = 2")
    newer.commit()
    with pytest.raises(BadHistory, match="another version"):
        History.at(tmp_path / "newer.db")
