"""The in-memory SQS for each test, and a reason where the package's own libraries are missing: they aren't in the
project's environment."""

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Tests don't time things: other suites may have the processors.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "spark"), str(ROOT)]
MISSING = [name for name in ("botocore", "msgspec", "orjson", "pyarrow") if importlib.util.find_spec(name) is None]


class Skipped(pytest.Module):
    """A test module that can't be imported here, and says why."""

    def collect(self) -> list[pytest.Item]:
        pytest.skip(f"needs {', '.join(MISSING)}: pip install ./spark", allow_module_level=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return Skipped.from_parent(parent, path=module_path) if MISSING else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives all tests with Spark to one worker, as each worker would start a Java of its own.

    xdist's own groups are part of a test's id, which pytest 9.2 no longer lets it change.
    """
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415  only if xdist runs

    class OneSpark(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if "/with_spark/" in nodeid else nodeid

    return OneSpark(config, log)


@pytest.fixture
def sqs() -> Iterator[Any]:
    from tests.sqs.queues import Queue  # noqa: PLC0415  may be missing here
    from tests.sqs.server import running  # noqa: PLC0415  may be missing here

    with running() as state:
        state.queues["q"] = Queue("q")
        yield state


@pytest.fixture
def fill(sqs: Any) -> Callable[[int], None]:
    def send(count: int) -> None:
        sqs.queues["q"].fill((f"{number:06d}" for number in range(count)), time.time())

    return send


@pytest.fixture(autouse=True)
def _files_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test ends the machine, and a busy disk takes a second for what a test does a hundred times."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
