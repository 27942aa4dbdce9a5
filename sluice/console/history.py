"""What sites held, minute by minute, while somebody looked: in memory, or in a file of SQLite's for the next time.

What went in and out CloudWatch remembers by itself; how much waited here, and how much was dead, nobody else does.
"""

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sluice.errors import BadConfiguration
from sluice.times import MINUTE_MS

KEPT_MINUTES = 7 * 24 * 60
FORGET_EVERY_MINUTES = 60
IN_MEMORY = ":memory:"
VERSION = 1  # of the table, as SQLite's user_version; 0 is a file that has none
TABLE = """
CREATE TABLE IF NOT EXISTS seen (
    site TEXT NOT NULL, name TEXT NOT NULL, minute INTEGER NOT NULL, value REAL NOT NULL,
    PRIMARY KEY (site, name, minute)
) WITHOUT ROWID
"""
NOTE = """
INSERT INTO seen VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET value = max(value, excluded.value)
"""


class BadHistory(BadConfiguration):
    """A file that can't keep the history; the text says why."""


@dataclass(slots=True)
class History:
    """The largest value of each minute, by site and name, for a week. Safe for threads."""

    database: sqlite3.Connection
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _forgot_at: int = 0

    @classmethod
    def at(cls, file: Path | None = None) -> "History":
        """Open a file, which is made where it isn't there, or keep it in memory. Raises `BadHistory`."""
        try:
            if file is not None:
                file.touch(mode=0o600)  # names of queues are for nobody else
            database = sqlite3.connect(IN_MEMORY if file is None else file, check_same_thread=False)
            [version] = database.execute("PRAGMA user_version").fetchone()
            if version not in {0, VERSION}:
                raise BadHistory(f"{file} is of another version: {version}, and not {VERSION}")
            if version == 0 and database.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                raise BadHistory(f"{file} is a database of something else")
            database.execute(TABLE)
            database.execute(f"PRAGMA user_version = {VERSION}")
            database.commit()
        except (sqlite3.Error, OSError) as error:
            raise BadHistory(f"{file} can't keep the history: {error}") from error
        return cls(database)

    def note(self, site: str, values: Mapping[str, float | None], *, at_ms: int) -> None:
        """Note what was seen; None is what isn't known. What can't be kept isn't, and the page goes on."""
        minute = at_ms // MINUTE_MS
        rows = [(site, name, minute, value) for name, value in values.items() if value is not None]
        with self._lock, suppress(sqlite3.Error):
            self.database.executemany(NOTE, rows)
            if minute - self._forgot_at >= FORGET_EVERY_MINUTES:
                self.database.execute("DELETE FROM seen WHERE minute < ?", (minute - KEPT_MINUTES,))
                self._forgot_at = minute
            self.database.commit()

    def series(self, site: str, name: str, *, at_ms: int, minutes: int) -> Sequence[float | None]:
        """Read the last minutes, the oldest first; None for those in which nobody looked."""
        last = at_ms // MINUTE_MS
        with self._lock, suppress(sqlite3.Error):
            found = self.database.execute(
                "SELECT minute, value FROM seen WHERE site = ? AND name = ? AND minute > ?",
                (site, name, last - minutes),
            ).fetchall()
            values = dict(found)
            return [values.get(each) for each in range(last - minutes + 1, last + 1)]
        return [None] * minutes

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self.database.close()
