"""Tests that try many cases: all of them in `make test-slow`, a share of them elsewhere."""

import pytest


def one_of(number: int) -> pytest.MarkDecorator:
    """Give the test `every`: it tries each case of that many, and in a slow variant all."""
    return pytest.mark.parametrize(
        "every", [pytest.param(number, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
    )
