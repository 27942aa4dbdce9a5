"""The bill of materials: all that is locked, and under which licence."""

import json

import pytest
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion

from sluice.bundles.assets import Assets
from sluice.bundles.bill import DOCUMENT, Package, bill, document, packages
from sluice.project import Project
from tests.stacks.conftest import PROJECT

# What may be linked to and passed on without opening one's own sources.
PERMISSIVE = ("Apache", "BSD", "CNRI-Python", "MIT", "MPL-2.0", "PSF-2.0")


@pytest.fixture(scope="module")
def found() -> dict[str, Package]:
    return {package.name: package for package in packages()}


def test_the_document_is_as_the_locks_are() -> None:
    assert document() == DOCUMENT.read_text(), "make lock, or python -m sluice.bundles.bill"


def test_each_package_states_a_licence(found: dict[str, Package]) -> None:
    assert [name for name, package in found.items() if not package.licence] == []


def test_what_is_deployed_may_be_passed_on(found: dict[str, Package]) -> None:
    deployed = [package for package in found.values() if package.is_deployed]
    assert [each.name for each in deployed if not any(name in each.licence for name in PERMISSIVE)] == []


def test_what_layers_hold_is_deployed_and_what_compiles_it_is_not(found: dict[str, Package]) -> None:
    assets = Assets(Project.clone(PROJECT))
    held = {pin.name for pin in assets.pins(assets.bundle("functions", "splitter"))}
    assert {name for name in held if not found[name].is_deployed} == set()
    assert not found["pyodide"].is_deployed


def test_the_bill_has_each_package_with_its_version_and_the_hashes_of_its_files(found: dict[str, Package]) -> None:
    written = json.loads(make_outputter(bill(), OutputFormat.JSON, SchemaVersion.V1_6).output_as_string())
    components = {component["name"]: component for component in written["components"]}
    assert {name: component["version"] for name, component in components.items()} == {
        name: package.version for name, package in found.items()
    }
    (files,) = components["jq"]["externalReferences"]
    assert {f"sha256:{each['content']}" for each in files["hashes"]} == set(found["jq"].hashes)
    assert (components["jq"]["scope"], components["ruff"]["scope"]) == ("required", "excluded")
