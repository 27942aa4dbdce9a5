"""Archives of functions are unpacked once, whatever number of environments needs them."""

from pathlib import Path
from zipfile import ZipFile, ZipInfo

import ministack.core.lambda_runtime
import pytest

from sluice.local.patches.functions import unpack_archives_once


@pytest.fixture(autouse=True)
def shared_archives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("ministack.core.lambda_runtime.zipfile", None)
    unpack_archives_once()


def unpack(folder: Path, code: str) -> Path:
    """Unpack an archive with a module as ministack does for an environment; return the module's path."""
    archive, code_folder = folder / "code.zip", folder / "code"
    code_folder.mkdir(parents=True)
    with ZipFile(archive, "w") as written:
        written.writestr(ZipInfo("package/index.py"), code)
    with ministack.core.lambda_runtime.zipfile.ZipFile(archive) as opened:
        opened.extractall(code_folder)
    return code_folder / "package" / "index.py"


def test_environments_share_what_one_archive_holds_and_no_other(tmp_path: Path) -> None:
    first, second = (unpack(tmp_path / name, "same = 1") for name in ("first", "second"))
    other = unpack(tmp_path / "other", "other = 1")
    assert first.resolve() == second.resolve() != other.resolve()
    assert [path.read_text() for path in (first, second, other)] == ["same = 1", "same = 1", "other = 1"]
