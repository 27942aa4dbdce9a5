"""Writes the documents' tables of parameters and arguments: `make parameters`.

It also writes cdk.json's section. A test checks that the files are current. A table of parameters is between
`<!-- parameters: rendezvous -->` and `<!-- end -->`. Without a section's name it lists the parameters outside sections;
`splitting.queues` lists the fields of an entry of that list.
"""

import json
import re
from collections.abc import Iterator, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_type_hints

from constructs import Construct

from sluice import constructs
from sluice.building.project import PROJECT
from sluice.constructs.arguments import describe_annotation
from sluice.operator.permissions import DEPLOYMENT, EVERY_COMMAND, ROWS, Resource
from sluice.parameters import ROOT, Parameters, json_schema
from sluice.parameters.values import Model, describe_type

TABLE = re.compile(r"(?P<begin><!-- parameters:(?P<section>[a-z. ]*)-->\n).*?(?P<end><!-- end -->)", re.DOTALL)
ARGUMENTS = re.compile(r"(<!-- arguments: -->\n).*?(<!-- end -->)", re.DOTALL)
# Parameters of functions' memory with one default share a row.
FUNCTION_MEMORY = re.compile(r"^Memory of the [a-z]+ function, in MB$")
MAX_DEFAULT_CHARACTERS = 40  # tables refer to cdk.json for longer defaults


def main() -> None:
    """Rewrite the files that are not current."""
    for path in (PROJECT.files / "cdk.json", *find_documents()):
        text = render_file(path)
        if text != path.read_text():
            path.write_text(text)


def find_documents() -> Iterator[Path]:
    """Find the documents that contain such tables."""
    return (
        path
        for path in sorted((PROJECT.files / "docs").glob("*.md"))
        if any(table.search(path.read_text()) for table in (TABLE, ARGUMENTS))
    )


def render_file(path: Path) -> str:
    """Render the file with current parameters. Raises KeyError for a table of an unknown section."""
    text = path.read_text()
    if path.suffix == ".md":
        text = TABLE.sub(lambda match: match["begin"] + _render_table(match["section"].strip()) + match["end"], text)
        return ARGUMENTS.sub(lambda match: match[1] + _render_arguments() + match[2], text)
    document = json.loads(text)
    document["context"][ROOT] = _to_json(Parameters())
    return json.dumps(document, indent=2) + "\n"


def _to_json(value: Any) -> Any:
    """Convert a value or a model to JSON. Models in lists keep only the fields that were set."""
    if isinstance(value, Model):
        return {name: _to_json(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, tuple):
        return [item.model_dump(mode="json", exclude_unset=True) if isinstance(item, Model) else item for item in value]
    return value


def _render_table(section: str) -> str:
    node: Mapping[str, Any] = json_schema()
    for name in section.split(".") if section else ():
        node = node["properties"][name]
        node = node.get("items", node)
    names: dict[str, list[str]] = {}
    for name, field in node["properties"].items():
        if "properties" not in field:
            accepted = describe_type(field).removeprefix("a whole number from ")
            description = FUNCTION_MEMORY.sub("Memory of the function, in MB", field["description"])
            names.setdefault(f"{_render_default(field)} | {accepted} | {description}", []).append(f"`{name}`")
    rows = [f"| {', '.join(alike)} | {text} |" for text, alike in names.items()]
    return "\n".join(["| parameter | default | accepts | description |", "|---|---|---|---|", *rows, ""])


def _render_arguments() -> str:
    """Render a row for each construct, with its arguments and their types, and one for what all constructs take."""
    rows = ["| construct | required | optional |", "|---|---|---|"]
    for name in constructs.__all__:
        construct = getattr(constructs, name)
        if issubclass(construct, Construct):
            given = [
                argument
                for argument in signature(vars(construct)["__init__"], eval_str=True).parameters.values()
                if argument.kind is Parameter.KEYWORD_ONLY
            ]
            required = {argument.name: argument.annotation for argument in given if argument.default is Parameter.empty}
            optional = {argument.name: argument.annotation for argument in given if argument.name not in required}
            rows.append(f"| `{name}` | {_render_types(required)} | {_render_types(optional)} |")
    return "\n".join([*rows, f"| all | | {_render_types(get_type_hints(constructs.SiteProps))} |", ""])


def _render_types(types: Mapping[str, Any]) -> str:
    return "; ".join(f"`{name}`: {describe_annotation(type_)}" for name, type_ in types.items())


def _render_default(field: Mapping[str, Any]) -> str:
    if "default" not in field:
        return "required"
    if field["default"] in (None, [], {}):
        return "none"
    text = field["default"] if isinstance(field["default"], str) else json.dumps(field["default"])
    return f"`{text}`" if len(text) <= MAX_DEFAULT_CHARACTERS else "see `cdk.json`"


def render_permissions() -> str:
    """Render the table of the commands' permissions, which the site of documents has."""
    lines = ["| command | permissions |", "|---|---|"]
    for row in (EVERY_COMMAND, *ROWS, DEPLOYMENT):
        actions: dict[Resource, tuple[str, ...]] = {}
        for grant in row.grants:
            actions[grant.resource] = (*actions.get(grant.resource, ()), *grant.actions)
        texts: dict[tuple[str, ...], list[str]] = {}
        for resource, allowed in actions.items():
            texts.setdefault(allowed, []).append(resource.text)
        needs = [f"`{'`, `'.join(allowed)}` on {', '.join(on)}" for allowed, on in texts.items()]
        names = row.commands[0] if row in {EVERY_COMMAND, DEPLOYMENT} else f"`{'`, `'.join(row.commands)}`"
        lines.append(f"| {names} | {'; '.join(needs) or 'no others'} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
