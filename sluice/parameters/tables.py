"""Writes the parameters to cdk.json's section `sluice` and to the tables of parameters in the documents.

`make parameters` runs it as `python -m sluice.parameters.tables`; a test compares. In a document a table is between
`<!-- parameters: rendezvous -->` and `<!-- end -->`. Without a section it lists what all sections share, and
`splitting.queues` stands for the fields of one entry of that list.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.building.project import PROJECT
from sluice.parameters import ROOT, Parameters, schema
from sluice.parameters.values import Model, in_words

PLACE = re.compile(r"(?P<begin><!-- parameters:(?P<section>[a-z. ]*)-->\n).*?(?P<end><!-- end -->)", re.DOTALL)
SHORT = 40  # characters of a default that a table shows; cdk.json has the others


def main() -> None:
    """Write what differs."""
    for path in (PROJECT.files / "cdk.json", *documents()):
        text = made(path)
        if text != path.read_text():
            path.write_text(text)


def documents() -> Iterator[Path]:
    """Find the documents that have tables."""
    return (path for path in sorted((PROJECT.files / "docs").glob("*.md")) if PLACE.search(path.read_text()))


def made(path: Path) -> str:
    """Make the file's text as it should be. Raises KeyError for a table of a section that there isn't."""
    text = path.read_text()
    if path.suffix == ".md":
        return PLACE.sub(lambda found: found["begin"] + _table(found["section"].strip()) + found["end"], text)
    document = json.loads(text)
    document["context"][ROOT] = _plain(Parameters())
    return json.dumps(document, indent=2) + "\n"


def _plain(model: Model) -> dict[str, Any]:
    """All defaults as JSON has them; of a list's entries only what differs from theirs."""
    return {name: _value(getattr(model, name)) for name in type(model).model_fields}


def _value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [each.model_dump(mode="json", exclude_unset=True) if isinstance(each, Model) else each for each in value]
    return _plain(value) if isinstance(value, Model) else value


def _table(section: str) -> str:
    node: Mapping[str, Any] = schema()
    for name in section.split(".") if section else ():
        node = node["properties"][name]
        node = node.get("items", node)
    rows = []
    for name, field in node["properties"].items():
        if "properties" not in field:
            words = in_words(field).removeprefix("a whole number from ")
            rows.append(f"| `{name}` | {_default(field)} | {words} | {field['description']} |")
    return "\n".join(["| name | default | is | |", "|---|---|---|---|", *rows, ""])


def _default(field: Mapping[str, Any]) -> str:
    if "default" not in field:
        return "required"
    if field["default"] in (None, [], {}):
        return "none"
    text = field["default"] if isinstance(field["default"], str) else json.dumps(field["default"])
    return f"`{text}`" if len(text) <= SHORT else "see `cdk.json`"


if __name__ == "__main__":
    main()
