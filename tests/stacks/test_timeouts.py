"""A time-out that strikes within jsii's protocol, or while something is made that many tests share."""

from pathlib import Path

import pytest

from tests.timeouts import end_the_process

HOOKS = """
from tests.timeouts import end_the_process, pytest_configure
"""
ENDS_THE_PROCESS = """
def pytest_itemcollected(item):
    end_the_process(item)
"""
WITHIN_JSII = """
import itertools
from constructs import Construct, RootConstruct

def test_that_goes_on():
    for number in itertools.count():
        Construct(RootConstruct(), f"s{number}")

def test_after_it():
    assert Construct(RootConstruct(), "s").node.id == "s"
"""
SHARED = """
import time
import pytest

@pytest.fixture(scope="session")
def slow():
    time.sleep(1.5)

@pytest.mark.timeout(1)
def test_the_first(slow):
    pass

@pytest.mark.timeout(1)
def test_that_takes_too_long(slow):
    time.sleep(3)
"""
PROJECT = Path(__file__).parents[2]


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite of its own, in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    return pytester


@pytest.mark.slow
def test_within_jsii_it_fails_its_own_test_by_name_and_the_next_passes(inner: pytest.Pytester) -> None:
    inner.makeconftest(HOOKS + ENDS_THE_PROCESS)
    inner.makepyfile(WITHIN_JSII)
    ran = inner.runpytest_subprocess("--timeout=3", "--numprocesses=1")
    ran.assert_outcomes(passed=1, failed=1)
    ran.stdout.fnmatch_lines(["*worker 'gw0' crashed while running *::test_that_goes_on'*"])
    ran.stdout.fnmatch_lines(["FAILED *::test_that_goes_on*"])


def test_what_many_tests_share_does_not_take_the_first_ones_time(inner: pytest.Pytester) -> None:
    """Also where the conftest isn't at the root: a session's fixtures belong to the root, and other hooks miss them."""
    for name, text in {"tests/conftest.py": HOOKS, "tests/test_shared.py": SHARED}.items():
        path = inner.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    ran = inner.runpytest_subprocess()
    ran.assert_outcomes(passed=1, failed=1)
    ran.stdout.fnmatch_lines(["*Timeout (>1.0s)*", "FAILED *::test_that_takes_too_long*"])


def test_a_tests_own_limit_stays(request: pytest.FixtureRequest) -> None:
    item = request.node
    item.add_marker(pytest.mark.timeout(77), append=False)
    end_the_process(item)
    assert item.get_closest_marker("timeout") == pytest.mark.timeout(77, method="thread").mark
