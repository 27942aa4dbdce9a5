"""Builds a jq program's input from a message, and interprets its outputs. Pure: programs run elsewhere.

An endless program holds the interpreter lock and ignores signals and threads, so the shell runs programs in a child
process that it can kill; compiling and running come in as ports.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping

from sluice.message import Message
from sluice.splitting.filters.values import MAX_PROGRAM_CHARACTERS

TIME_LIMIT_S = 1.0  # one program on one message

METADATA = "S3Metadata"  # the field that has it

CompileProblem = Callable[[str], str | None]  # why a program doesn't compile, or None where it does
Decide = Callable[[str, str], bool | None]  # (program, document) to `decision` of its outputs; raises `ProgramTimedOut`


class ProgramTimedOut(Exception):  # control flow between the port and the router, no error of Sluice's
    """A program exceeded its limit of time or memory; its sessions should be cancelled."""


class NotRunning(Exception):  # control flow too
    """The process that runs jq programs can't be started for now, which is no session's fault."""


def problem(program: str, *, compile_problem: CompileProblem) -> str | None:
    """Return why the program can't be used; None if it can. An empty one, which jq takes for `.`, can't decide."""
    if not program.strip():
        return "is empty"
    if len(program) > MAX_PROGRAM_CHARACTERS:
        return f"is longer than {MAX_PROGRAM_CHARACTERS} characters"
    cause = compile_problem(program)
    return None if cause is None else f"doesn't compile: {cause}"


def names_metadata(program: str) -> bool:
    """Whether the program names the metadata of S3 objects. For other programs it isn't fetched."""
    return METADATA in program


def decision(outputs: Iterable[object]) -> bool | None:
    """Find the first boolean among the outputs, read no further than that; None where there is none before an error.

    The jq library's errors are ValueErrors.
    """
    try:
        return next((output for output in outputs if isinstance(output, bool)), None)
    except ValueError:
        return None


def document(message: Message, *, s3_metadata: Mapping[str, str] | None = None) -> str:
    """Write the message as JSON, as the SQS API shows it; binary values in Base64.

    `s3_metadata`, for a program that names it where the queue carries S3 events, is that of the event's object.
    """
    attributes: dict[str, dict[str, str]] = {}
    for name, value in message.attributes.items():
        content = value.content
        shown = {"BinaryValue": b64encode(content).decode()} if isinstance(content, bytes) else {"StringValue": content}
        attributes[name] = {"DataType": value.data_type, **shown}
    document = {
        "MessageId": message.message_id,
        "Body": message.body,
        "Attributes": dict(message.system),
        "MessageAttributes": attributes,
    }
    return json.dumps(document if s3_metadata is None else {**document, METADATA: dict(s3_metadata)})
