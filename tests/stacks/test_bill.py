"""Which packages are deployed, under which licence, and what the bill of materials says of them."""

import json
import re
import subprocess
from email.message import Message
from importlib.metadata import metadata
from pathlib import Path
from typing import cast

import pytest

from sluice.building.locks import parse_lock
from sluice.building.project import Project
from sluice.bundles.assets import Assets
from sluice.bundles.environment import SparkAssets
from tests.stacks.conftest import PROJECT

LAYERS = ("functions", "splitter", "geoip")  # extras of pyproject.toml that functions' layers are made of
DOCUMENT = PROJECT / "docs" / "licences.md"
ROW = re.compile(r"^\| (?P<package>[a-z0-9-]+) \| (?P<licence>.+) \|$", re.MULTILINE)
# What may be linked to and passed on without opening one's own sources.
PERMISSIVE = ("Apache", "BSD", "CNRI-Python", "MIT", "MPL-2.0", "PSF-2.0")
SHORT = 40  # characters of a licence's name; some packages put the whole text there
VAGUE = {"", "UNKNOWN", "Dual License"}


def deployed_licences() -> dict[str, str]:
    assets = Assets(Project.clone(PROJECT))
    pins = (*assets.pins(assets.bundle(*LAYERS)), *SparkAssets(Project.clone(PROJECT)).pins())
    return {pin.name: stated_licence(pin.name) for pin in pins}


def stated_licence(package: str) -> str:
    """The licence's expression, its name, or what it is filed under, whichever is there first."""
    stated = cast("Message", metadata(package))  # which it is, but for its type
    if expression := stated.get("License-Expression"):
        return expression
    name = (stated.get("License") or "").strip()
    if name not in VAGUE and len(name) <= SHORT and "\n" not in name:
        return name
    classifiers = stated.get_all("Classifier") or []
    return " or ".join(line.rsplit(" :: ", 1)[1] for line in classifiers if line.startswith("License :: "))


def test_the_document_lists_what_is_deployed_with_the_licence_that_it_states() -> None:
    rows = {row["package"]: row["licence"] for row in ROW.finditer(DOCUMENT.read_text()) if row["package"] != "package"}
    assert rows == deployed_licences()


def test_what_is_deployed_may_be_passed_on() -> None:
    licences = deployed_licences()
    assert [name for name, licence in licences.items() if not any(known in licence for known in PERMISSIVE)] == []


@pytest.mark.slow
def test_the_bill_has_each_package_with_its_version_and_the_hashes_of_its_files(tmp_path: Path) -> None:
    makefile = (PROJECT / "Makefile").read_text()
    (command,) = re.findall(r"^\t(cyclonedx-py requirements .*)$", makefile, re.MULTILINE)
    bill = tmp_path / "sbom.json"
    subprocess.run(command.replace("build/sbom.json", str(bill)).split(), cwd=PROJECT, check=True)
    components = {component["name"]: component for component in json.loads(bill.read_text())["components"]}
    pins = parse_lock((PROJECT / "requirements.txt").read_text())
    assert {name: component["version"] for name, component in components.items()} == {
        name: pin.version for name, pin in pins.items()
    }
    (files,) = components["jq"]["externalReferences"]
    assert {f"sha256:{file['content']}" for file in files["hashes"]} == set(pins["jq"].hashes)
