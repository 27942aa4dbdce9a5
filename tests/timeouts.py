"""A time-out fails the test that it strikes, by name, and no other: hooks that a folder's conftest imports."""

import sys
from collections.abc import Generator

import pytest
import pytest_timeout

# Of a fixture that many tests use, or their own where that is longer; what it waits for has a limit and an error.
SHARED_LIMIT_S = 900


def pytest_configure(config: pytest.Config) -> None:
    """Registers this module: pytest doesn't ask the hooks of a folder's conftest about a session's fixtures."""
    module = sys.modules[__name__]
    if not config.pluginmanager.is_registered(module):
        config.pluginmanager.register(module)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """What is made for many tests doesn't take the time of the one that happens to be the first."""
    item = request._pyfuncitem
    settings = pytest_timeout._get_item_settings(item)
    if fixturedef.scope == "function" or not settings.timeout:
        return (yield)
    _start(item, settings._replace(timeout=max(SHARED_LIMIT_S, settings.timeout)))
    try:
        return (yield)
    finally:
        _start(item, settings)


def _start(item: pytest.Item, settings: pytest_timeout.Settings) -> None:
    item.config.hook.pytest_timeout_cancel_timer(item=item)
    item.config.hook.pytest_timeout_set_timer(item=item, settings=settings)


def end_the_process(item: pytest.Item) -> None:
    """A time-out ends the process of a test that speaks with jsii's, or py4j's; xdist fails it and starts another.

    An exception raised in the middle of their protocol would fail whatever comes after it.
    """
    given = item.get_closest_marker("timeout")
    limits = (given.args, given.kwargs) if given else ((), {})
    item.add_marker(pytest.mark.timeout(*limits[0], **{**limits[1], "method": "thread"}), append=False)
