"""Configuration that documents show, held against what reads it: parameters, filters, topologies."""

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from sluice.federation.topology.desired import parse_topology
from sluice.parameters import Parameters
from sluice.splitting.filters.files import parse_filters
from sluice.splitting.filters.templates import Templates
from sluice.splitting.jq_runner import compile_problem
from tests.snippets.documents import ROOT, Block
from tests.sources import parse_source

PARAMETERS = "cdk.json"
# What a part of cdk.json needs beside itself.
QUEUE = {"queue_id": "shown", "existing_source_queue_arn": "arn:aws:sqs:eu-central-1:123456789012:shown"}
QUEUES = {"sluice.splitting.queues": [{"queue_id": "pipeline"}, {"queue_id": "orders"}]}
READERS: Mapping[str, Callable[[Any], object]] = {
    "a filter file": lambda document: parse_filters(
        document, compile_problem=compile_problem, templates=Templates({"key": "alice"})
    ),
    "a topology": parse_topology,
}


def read_fragment(block: Block) -> None:
    """Reads a block as what it is said to be: one of `READERS`, or `cdk.json` with the path to where it stands.

    Raises what its reader raises.
    """
    document = json.loads(as_json(block.text)) if block.language == "json" else yaml.safe_load(block.text)
    what = block.rest.removeprefix("as ")
    reader = READERS.get(what)
    if reader:
        reader(document)
        return
    file, path = what.split()
    assert file == PARAMETERS, block.place
    context = json.loads((ROOT / PARAMETERS).read_text())["context"]
    Parameters.from_context(context | placed(path, document))


def as_json(text: str) -> str:
    """A part of an object, `"name": value`, as the object that it is of."""
    return f"{{{text}}}" if text.lstrip().startswith('"') else text


def placed(path: str, document: Any) -> dict[str, Any]:
    """Parameters with this document at a path such as `sluice.splitting.queues[].consumers[]`; `[]` is an entry."""
    section, is_entry, field = path.partition("[]")
    if not is_entry:
        return QUEUES | {f"{path}.{name}": value for name, value in document.items()}
    of_field = field.removesuffix("[]").strip(".")
    return {section: [{**QUEUE, of_field: [document]} if of_field else document]}


def sources(text: str) -> list[dict[str, str]]:
    """The options of each source for Spark that a program reads from."""
    loads = [node for node in ast.walk(parse_source(text)) if isinstance(node, ast.Call) and _name(node) == "load"]
    chains = [_options(node) for node in loads]
    return [{name: value for name, value in chain.items() if name} for chain in chains if chain.get("") == "sqs"]


def _options(call: ast.expr) -> dict[str, str]:
    """Those of a chain of calls, and the format under an empty name."""
    found: dict[str, str] = {}
    while isinstance(call, ast.Call | ast.Attribute):
        if isinstance(call, ast.Call):
            values = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
            if _name(call) == "format":
                found[""] = str(values[0])
            elif _name(call) == "option" and len(values) == len(("name", "value")):
                found[str(values[0])] = str(values[1])
            call = call.func
        else:
            call = call.value
    return found


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
