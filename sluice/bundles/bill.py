"""The bill of materials: every package that is locked, under which licence, and whether it is deployed.

`python -m sluice.bundles.bill` writes docs/licences.md (`make lock`); a test compares. With `--sbom FILE` it
writes CycloneDX instead (`make sbom`). A Python package's licence is what its own metadata say, so it must be installed
here; one that is locked for other platforms alone is left out. An npm package's is what its lock says.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import cast

from cyclonedx.contrib.hash.factories import HashTypeFactory
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from sluice.bundles.assets import Assets
from sluice.bundles.environment import SparkAssets
from sluice.locks import Pin, read_lock
from sluice.project import PROJECT

DOCUMENT = PROJECT.files / "docs" / "licences.md"
LAYERS = ("functions", "splitter", "geoip")  # extras of pyproject.toml that functions' layers are made of
PLACE = re.compile(r"(<!-- licences: (?P<which>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
SHORT = 40  # characters of a licence's name; some packages put the whole text there
VAGUE = frozenset({"", "UNKNOWN", "Dual License"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One that is locked. `kind` is a package URL's: pypi or npm."""

    kind: str
    name: str
    version: str
    licence: str
    hashes: tuple[str, ...]
    is_deployed: bool


def packages() -> Sequence[Package]:
    """List all, in order of kinds and names."""
    return [*_npm_packages(), *_python_packages()]


def _python_packages() -> Iterator[Package]:
    assets = Assets(PROJECT)
    deployed = {pin.name for pin in (*assets.pins(assets.bundle(*LAYERS)), *SparkAssets(PROJECT).pins())}
    for name, pin in sorted(_locked_for_a_clone().items()):
        if (found := _metadata(pin)) is not None:
            yield Package(
                kind="pypi",
                name=name,
                version=pin.version,
                licence=_licence(found),
                hashes=pin.hashes,
                is_deployed=name in deployed,
            )


def _locked_for_a_clone() -> Mapping[str, Pin]:
    """Read the locks of what `make setup` installs.

    A package that one lock wants on every platform has no marker, whatever another lock says.
    """
    locked: dict[str, Pin] = {}
    for lock in (PROJECT.lock, *(PROJECT.files / "requirements").glob("*.txt")):
        for name, pin in read_lock(lock.read_text()).items():
            if name not in locked or not pin.marker:
                locked[name] = pin
    return locked


def _metadata(pin: Pin) -> Message | None:
    try:
        return cast("Message", metadata(pin.name))  # which it is, but for its type
    except PackageNotFoundError:
        if pin.marker:
            return None
        raise


def _licence(found: Message) -> str:
    """Give the licence's expression, its name, or what it is filed under, whichever is there first."""
    if expression := found["License-Expression"]:
        return str(expression)
    name = str(found["License"] or "").strip()
    if name not in VAGUE and len(name) <= SHORT and "\n" not in name:
        return name
    filed = [each.rsplit(" :: ", 1)[1] for each in found.get_all("Classifier") or [] if each.startswith("License :: ")]
    return " or ".join(filed) or name.splitlines()[0].strip()


def _npm_packages() -> Iterator[Package]:
    lock = json.loads((PROJECT.files / "package-lock.json").read_text())["packages"]
    for path, package in sorted(lock.items()):
        if path:
            name = path.removeprefix("node_modules/")
            yield Package(
                kind="npm",
                name=name,
                version=package["version"],
                licence=package["license"],
                hashes=(),  # its lock has them in a form of npm's own
                is_deployed=False,
            )


def document() -> str:
    """Make docs/licences.md as it should be."""
    return PLACE.sub(lambda found: found[1] + _table(found["which"] == "deployed") + found[3], DOCUMENT.read_text())


def _table(is_deployed: bool) -> str:  # noqa: FBT001 - which of the two tables
    rows = [
        f"| {each.name} | {each.licence.replace('|', 'or')} |\n"
        for each in packages()
        if each.is_deployed is is_deployed
    ]
    return "".join(["| package | licence |\n|---|---|\n", *rows])


def bill() -> Bom:
    """Make the bill; what isn't deployed has scope `excluded`."""
    return Bom(components=map(_component, packages()))


def _component(package: Package) -> Component:
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(f"https://pypi.org/project/{package.name}/{package.version}/"),
        hashes=map(HashTypeFactory().from_composite_str, package.hashes),
    )
    *scope, name = package.name.split("/")  # npm's
    return Component(
        type=ComponentType.LIBRARY,
        bom_ref=f"{package.kind}/{package.name}",
        name=package.name,
        version=package.version,
        purl=PackageURL(type=package.kind, namespace="".join(scope), name=name, version=package.version),
        licenses=[LicenseFactory().make_from_string(package.licence)],
        external_references=[files] if package.hashes else [],
        scope=ComponentScope.REQUIRED if package.is_deployed else ComponentScope.EXCLUDED,
    )


def main() -> None:
    """Write the document, or the bill."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sbom", type=Path, help="write CycloneDX 1.6 here instead")
    if file := arguments.parse_args().sbom:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(make_outputter(bill(), OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1))
    else:
        DOCUMENT.write_text(document())


if __name__ == "__main__":
    main()
