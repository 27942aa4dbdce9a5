"""Every entry by the name of its folder in the corpus: bytes in, what became of them in words out.

An entry raises what its declared errors aren't, and says what these are.
"""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from sluice.message import Value
from tests.hostile import federation_entries as federation
from tests.hostile import pipeline_entries as pipeline
from tests.hostile import rendezvous_entries as rendezvous
from tests.hostile import splitting_entries as splitting

Serve = Callable[[bytes], str]


def text(serve: Callable[[str], str]) -> Serve:
    """An entry that is fed text."""
    return lambda content: serve(content.decode())


def attributes(content: bytes) -> str:
    """A message's attributes, `{name: [type, text or {"base64": …}]}`, wherever somebody can send them."""
    given = {
        name: Value(type_, base64.b64decode(value["base64"]) if isinstance(value, dict) else value)
        for name, (type_, value) in json.loads(content).items()
    }
    said = {
        "offer": rendezvous.offer("1.0\n{}", given),
        "split": splitting.message("b", given),
        "exchange": federation.message("b", given),
        "bridge": federation.crossing(given),
    }
    return "; ".join(f"{name}: {each}" for name, each in said.items())


def operation(ask: Callable[[Any], str], queued: Callable[[str], str] | None = None) -> Serve:
    """What a function is asked: by invocation, where it is JSON, and where there is a queue also from that."""

    def serve(content: bytes) -> str:
        said = []
        try:
            said.append(f"asked: {ask(json.loads(content))}")
        except (ValueError, RecursionError):
            said.append("asked: no JSON")
        if queued is not None:
            said.append(f"queued: {queued(content.decode())}")
        return "; ".join(said)

    return serve


ENTRIES: Mapping[str, Serve] = {
    "offers": text(rendezvous.offer),
    "events": text(rendezvous.counted),
    "polls": rendezvous.poll,
    "answers": rendezvous.answer,
    "amp": text(rendezvous.amp),
    "http": text(rendezvous.http),
    "attributes": attributes,
    "metadata": text(federation.metadata),
    "control": text(federation.control),
    "operations_sessions": operation(splitting.asked, splitting.queued),
    "operations_federation": operation(federation.asked, federation.queued),
    "operations_jobs": operation(pipeline.asked),
    "topologies": federation.topology,
    "filters_yaml": splitting.filters,
    "filters_json": lambda content: splitting.filters(content, ending=".json"),
    "registry": text(splitting.stored),
    "notifications": text(pipeline.notification),
    "arguments": text(pipeline.arguments),
    "staged_names": text(pipeline.names),
    "staged_files": pipeline.segment,
    "parameters": text(pipeline.parameters),
    "dead_letters": text(pipeline.dead_letter),
}
