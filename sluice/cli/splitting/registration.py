"""Queues that can be split, written to cdk.json, where the stacks read them."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.errors import BadConfiguration


class BadRegistration(BadConfiguration):
    """A queue that can't be registered; cdk.json is as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A cdk.json with one more queue, unwritten. `keys` are the ARNs of keys, `window_s` a batch's longest wait."""

    cdk_json: Path
    document: Mapping[str, Any]
    window_s: int
    keys: Collection[str]

    def write(self) -> None:
        """Put it into the file."""
        self.cdk_json.write_text(json.dumps(self.document, indent=2) + "\n")


def registration(cdk_json: Path, queue: Mapping[str, Any]) -> Registration:
    """Add the queue, checked as the next synth would check it. Raises `BadRegistration`, or `BadParameter`."""
    # CDK's library takes seconds to import, but its parameters are plain Python.
    from sluice.parameters import Parameters  # noqa: PLC0415 - the project's, which a mere command line may lack

    try:
        document = json.loads(cdk_json.read_text())
        splitting = document["context"]["sluice"].setdefault("splitting", {})
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise BadRegistration(f"{cdk_json}: not this project's cdk.json ({type(error).__name__}: {error})") from error
    splitting["queues"] = [*splitting.get("queues", []), dict(queue)]
    found = Parameters.read(document["context"]).splitting
    fifo = found.queues[-1].fifo
    window_s = 0 if fifo else found.batching_window_s
    return Registration(cdk_json=cdk_json, document=document, window_s=window_s, keys=found.kms_key_arns)


def section_of(queues: Collection[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Make the parameters' section of these queues, checked as a synth would check it. Raises `BadParameter`."""
    from sluice.parameters import ROOT, Parameters  # noqa: PLC0415 - see above

    section = {"splitting": {"queues": [dict(queue) for queue in queues]}}
    Parameters.read({ROOT: section})
    return section
