"""Adds queues that can be split to cdk.json, from which the stacks read them."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.errors import BadConfiguration


class BadRegistration(BadConfiguration):
    """A queue can't be registered; cdk.json is unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The content of cdk.json with one more queue. `keys` are KMS key ARNs, `window_s` is the batching window.

    `is_notified` if SNS or S3 sends to the queue.
    """

    document: Mapping[str, Any]
    window_s: int
    keys: Collection[str]
    is_notified: bool


def add_queue(cdk_json: Path, queue: Mapping[str, Any]) -> Registration:
    """Add a queue to cdk.json's content, and validate it as CDK would. Raises `BadRegistration`, `BadParameter`."""
    from sluice.parameters import Parameters  # noqa: PLC0415 - may be missing if only the command line is installed

    try:
        document = json.loads(cdk_json.read_text())
        splitting = document["context"]["sluice"].setdefault("splitting", {})
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise BadRegistration(f"{cdk_json}: not this project's cdk.json ({type(error).__name__}: {error})") from error
    splitting["queues"] = [*splitting.get("queues", []), dict(queue)]
    splitting_parameters = Parameters.from_context(document["context"]).splitting
    added = splitting_parameters.queues[-1]
    return Registration(
        document=document,
        window_s=splitting_parameters.reading(added).window_s or 0,
        keys=splitting_parameters.kms_key_arns,
        is_notified=added.sns or added.s3_event,
    )


def build_section(queues: Collection[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Build the section of cdk.json with these queues, and validate it as CDK would. Raises `BadParameter`."""
    from sluice.parameters import ROOT, Parameters  # noqa: PLC0415 - see above

    section = {"splitting": {"queues": [dict(queue) for queue in queues]}}
    Parameters.from_context({ROOT: section})
    return section
