"""That the sets of parameters are what they are called: a limit that is raised is tried where it is then."""

from typing import Any

import pytest

from sluice.parameters import Parameters, parameter_schemas
from tests.stacks.conftest import CONTEXT
from tests.templates.parameter_sets import MANY, MAXIMUM, SETS, ParameterSet

HOLDS_LESS = {  # beside what the limit of their number is, all have to fit into what a function is told
    "sluice.splitting.queues",
    "sluice.federation.peer_stages",
    "sluice.federation.peers",
    "sluice.federation.bindings",
    "sluice.federation.links",
    "sluice.federation.routes",
}


def value(given: ParameterSet, key: str) -> Any:
    node: Any = Parameters.from_context({**CONTEXT, **given.parameters})
    for name in key.split(".")[1:]:
        node = getattr(node, name)
    return node


@pytest.mark.parametrize("given", [MANY, MAXIMUM], ids=lambda given: given.name)
def test_at_the_maximum_every_number_and_every_list_is_as_large_as_it_may_be(given: ParameterSet) -> None:
    numbers = {key: each["maximum"] for key, each in parameter_schemas().items() if "maximum" in each}
    lists = {
        key: each["maxItems"]
        for key, each in parameter_schemas().items()
        if "maxItems" in each and key not in HOLDS_LESS
    }
    assert len(numbers) > 30
    assert {key: value(given, key) for key in numbers} == numbers
    assert {key: len(value(given, key)) for key in lists} == lists


def test_sets_are_told_apart_by_their_names() -> None:
    assert len({each.name for each in SETS}) == len(SETS)
