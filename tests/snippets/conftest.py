"""A cloud for the documents' readers, as `sluice local up` makes it, and the count of what they typed."""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sluice.local.cloud import FILE, clean_environment, find_cloud, start_cloud
from sluice.local.processes import end_session
from sluice.local.sites import DEFAULT_SITE, Site
from tests.snippets.documents import ROOT
from tests.snippets.run import FAILED, FOR_AWS, LOOKED_AT, PASSED, TRIED

SITES = (DEFAULT_SITE, Site("000000000000", "us-east-1"))  # those that the documents name
BIN = Path(sys.executable).parent
KEPT = frozenset({"HOME", "LANG", "LD_LIBRARY_PATH", "JAVA_HOME"})

COUNTS: Counter[str] = Counter()


@pytest.fixture(scope="session")
def count() -> Callable[[Mapping[str, int]], None]:
    """Adds to what is told at the end."""
    return COUNTS.update


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A reader's: our commands are on the path, the cloud is nobody else's, and nothing leads to AWS."""
    kept = {name: value for name, value in clean_environment().items() if name in KEPT}
    return kept | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "AWS_EC2_METADATA_DISABLED": "true",
        "SLUICE_LOCAL_FOLDER": str(tmp_path_factory.mktemp("reader") / "cloud"),
        "COLUMNS": "80",
    }


@pytest.fixture(scope="session")
def deployed_folder(environment: dict[str, str]) -> Iterator[Path]:
    """Where the cloud's state is kept, once its sites are deployed; it is stopped."""
    sluice = [str(BIN / "python"), "-m", "sluice.cli.main", "local"]
    folder = Path(environment["SLUICE_LOCAL_FOLDER"])
    subprocess.run([*sluice, "up", *map(str, SITES)], env=environment, check=True)
    subprocess.run([*sluice, "down"], env=environment, check=True)
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept, symlinks=True)
    yield kept
    _end(folder)


@pytest.fixture
def no_cloud(environment: dict[str, str]) -> Iterator[None]:
    """As on a machine where Sluice was never used: the reader starts the cloud."""
    folder = Path(environment["SLUICE_LOCAL_FOLDER"])
    _end(folder)
    shutil.rmtree(folder, ignore_errors=True)
    yield
    _end(folder)


@pytest.fixture
def fresh_cloud(deployed_folder: Path, environment: dict[str, str]) -> None:
    """The cloud as it was just after its sites were deployed, running."""
    folder = Path(environment["SLUICE_LOCAL_FOLDER"])
    _end(folder)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(deployed_folder, folder, symlinks=True)
    start_cloud(folder, keep_state=True)


def _end(folder: Path) -> None:
    """Ends it at once: it has nothing to save."""
    running = find_cloud(folder)
    if running:
        os.killpg(running.pid, signal.SIGKILL)
        end_session(running.pid)
        (folder / FILE).unlink(missing_ok=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many commands of the documents were tried, and how that went."""
    if COUNTS:
        kinds = (TRIED, PASSED, FAILED, FOR_AWS, LOOKED_AT)
        terminalreporter.section("snippets")
        terminalreporter.line(", ".join(f"{COUNTS[kind]} {kind}" for kind in kinds))
