"""Tests that try many cases: all of them in `make test-slow`, a share of them elsewhere."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def one_of(number: int) -> pytest.MarkDecorator:
    """Give the test `every`: it tries each case of that many, and in a slow variant all."""
    return pytest.mark.parametrize(
        "every", [pytest.param(number, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
    )


def some_of(cases: Iterable[Any], *, every: int) -> list[ParameterSet]:
    """Return the cases as parameters, of which each but one of so many is slow. A tuple has several parameters."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*value, marks=[pytest.mark.slow] if place % every else []) for place, value in enumerate(values)
    ]
