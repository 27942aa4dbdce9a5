"""Our stacks' templates for every set of parameters, each synthesized once, as the stacks' own tests do it."""

from collections.abc import Callable

import pytest

from tests.stacks.conftest import Templates, layer, pytest_itemcollected, synth  # noqa: F401 - pytest finds them here
from tests.templates.assembly import Assembly
from tests.templates.parameter_sets import ParameterSet

Assemblies = Callable[[ParameterSet], Assembly]


@pytest.fixture(scope="session")
def assemblies(synth: Callable[..., Templates]) -> Assemblies:  # noqa: F811 - the fixture's name is how it is asked for
    """Synthesizes a set of parameters, once; sets are told apart by their names."""
    synthesized: dict[str, Assembly] = {}

    def assembly(given: ParameterSet) -> Assembly:
        if given.name not in synthesized:
            synthesized[given.name] = Assembly.of(synth(**given.parameters))
        return synthesized[given.name]

    return assembly
