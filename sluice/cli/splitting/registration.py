"""Adds queues that can be split to cdk.json, from which the stacks read them."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.aws.connections import Connection
from sluice.cli.terminal import print_note
from sluice.documents import read_json
from sluice.errors import BadConfiguration
from sluice.operator.queues import read_adopted_queue
from sluice.splitting.adoption import SOURCE, find_remarks
from sluice.splitting.consumers.targets import Target

# Fields of each type of consumer, in the order in which the option `--consumer` lists their values.
CONSUMER_FIELDS: Mapping[str, tuple[str, ...]] = {
    "lambda trigger": ("function",),
    "lambda variable": ("function", "variable"),
    "parameter": ("name",),
    "ecs variable": ("cluster", "service", "container", "variable"),
    "kubernetes": ("cluster", "namespace", "kind", "name", "env"),
}
CONSUMER_FORMS: Mapping[str, str] = {
    type_: f"{type_.replace(' ', '-')}={'/'.join(names).upper()}" for type_, names in CONSUMER_FIELDS.items()
}


class BadRegistration(BadConfiguration):
    """Raised if a queue can't be registered. The file cdk.json is unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The new content of cdk.json (`document`), and parameters of the added queue, such as its re-pointed `consumers`.

    `keys` are ARNs of KMS keys. `window_s` is the batching window. `is_notified` says whether SNS or S3 sends to it.
    """

    document: Mapping[str, Any]
    consumers: Sequence[Target]
    window_s: int
    keys: Collection[str]
    is_notified: bool


def add_queue(cdk_json: Path, queue: Mapping[str, Any]) -> Registration:
    """Add a queue to the content of cdk.json, and validate the result. Raises `BadRegistration`, `BadParameter`."""
    from sluice.parameters import Parameters  # noqa: PLC0415 - may be missing if only the command line is installed
    from sluice.parameters.consumers import to_targets  # noqa: PLC0415 - as above

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
        consumers=to_targets(added.consumers),
        window_s=splitting_parameters.reading(added).window_s or 0,
        keys=splitting_parameters.kms_key_arns,
        is_notified=added.is_notified,
    )


def parse_consumer(option: str) -> dict[str, Any]:
    """Parse an option `--consumer`, in a form of `CONSUMER_FORMS` or as `KIND={…}`. Raises `BadRegistration`."""
    kind, _, text = option.partition("=")
    type_ = kind.replace("-", " ")
    names = CONSUMER_FIELDS.get(type_)
    if names is None:
        raise BadRegistration(f"--consumer: {kind[:80]!r} is no kind; give {', '.join(CONSUMER_FORMS.values())}")
    if text.startswith("{"):
        try:
            return {"type": type_, **read_json(text)}
        except ValueError as error:
            raise BadRegistration(f"--consumer: {kind}: this is not JSON: {error}") from error
    values = text.split("/") if len(names) > 1 else [text]
    if len(values) != len(names) or not all(values):
        raise BadRegistration(f"--consumer: {option[:80]!r} is not {CONSUMER_FORMS[type_]}")
    return {"type": type_, **dict(zip(names, values, strict=True))}


def check_reader(source_arn: str | None, *, main_arn: str | None, consumers: Sequence[str], follows: bool) -> None:
    """Raise `BadRegistration` unless exactly one option says who reads an adopted source queue's messages."""
    number = (main_arn is not None) + bool(consumers) + follows
    if source_arn is not None and not number:
        raise BadRegistration(
            f"nobody would read the messages of {source_arn}: the splitter would send them to a new main queue, and "
            "your consumer reads the source. Give --consumer KIND=… for a consumer that Sluice re-points during "
            "sessions, --main-arn ARN for a queue that it reads already, or --consumer-follows if you will point it "
            "to the main queue yourself"
        )
    if number > 1 or (follows and source_arn is None):
        raise BadRegistration(
            "--main-arn, --consumer and --consumer-follows exclude each other, and the last needs --source-arn: "
            "give the one that says who reads the messages"
        )


def check_adoption(connection: Connection, adopted: Mapping[str, str], registration: Registration) -> str | None:
    """Print warnings about the queues to adopt. Returns the ARN of the source queue's dead-letter queue.

    Raises `BadRegistration` if adopting the queues would fail or lose messages.
    """
    queues = [read_adopted_queue(connection, role, arn) for role, arn in adopted.items()]
    problems = list(
        find_remarks(
            queues,
            region=connection.region,
            window_s=registration.window_s,
            key_arns=registration.keys,
            is_notified=registration.is_notified,
            consumers=registration.consumers,
        )
    )
    for remark in problems:
        print_note(f"{remark.queue}: {remark.problem}")
    against = sum(remark.refuses for remark in problems)
    if against:
        raise BadRegistration(
            f"not registered: {against} of these problems would fail or lose messages (--unchecked ignores them)"
        )
    redrives = [read_json(queue.attributes.get("RedrivePolicy") or "{}") for queue in queues if queue.role == SOURCE]
    return next((redrive.get("deadLetterTargetArn") for redrive in redrives), None)


def build_section(queues: Collection[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Build the section `splitting` of cdk.json with these queues, and validate it. Raises `BadParameter`."""
    from sluice.parameters import ROOT, Parameters  # noqa: PLC0415 - see above

    section = {"splitting": {"queues": [dict(queue) for queue in queues]}}
    Parameters.from_context({ROOT: section})
    return section
