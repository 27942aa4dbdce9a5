"""Packages that only a job's driver has: unpacked before the job begins, and found by its imports."""

import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from sluice_jobs import main as entry_point

COMPACT = ["compact", "--tables", "/t", "--table-format", "parquet"]


def test_a_job_imports_what_its_drivers_archive_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = b"NAME = 'found'\n"
    with tarfile.open(tmp_path / "d.tgz", "w:gz") as archive:
        module = tarfile.TarInfo("packed_for_drivers.py")
        module.size = len(content)
        archive.addfile(module, io.BytesIO(content))

    def run_job(_: Any) -> dict[str, str]:
        import packed_for_drivers  # type: ignore[import-not-found]  # noqa: PLC0415  unpacked by now

        return {"name": packed_for_drivers.NAME}

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(entry_point, "run_job", run_job)
    monkeypatch.setenv("SLUICE_DRIVER_PACKAGES", f"{tmp_path}/d.tgz")
    monkeypatch.chdir(tmp_path)
    assert entry_point.main(COMPACT) == 0
    assert capsys.readouterr().out == '{"name": "found"}\n'
    assert [path.name for path in (tmp_path / "driver").glob("*.py")] == ["packed_for_drivers.py"]


def test_an_archive_that_is_not_there_is_an_error_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_DRIVER_PACKAGES", f"{tmp_path}/d.tgz")
    assert entry_point.main(COMPACT) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("sluice_job: ")
    assert "d.tgz" in line
