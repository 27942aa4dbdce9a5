"""Builds a jq program's input from a message, and interprets its outputs. Pure: programs run elsewhere.

An endless program holds the interpreter lock and ignores signals and threads. So programs run in a child process that
can be killed; the functions to compile and run a program are passed in as arguments.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping

from sluice.message import Message
from sluice.splitting.filters.values import MAX_PROGRAM_CHARACTERS

TIME_LIMIT_S = 1.0  # seconds that a program may run on one message

METADATA = "S3Metadata"  # the document's field with the metadata of S3 objects

CompileProblem = Callable[[str], str | None]  # returns the compiler's error, or None
Decide = Callable[[str, str], bool | None]  # (program, document) to `decision` of its outputs; raises `ProgramTimedOut`


class ProgramTimedOut(Exception):  # control flow between process and router, not a SluiceError
    """A program exceeded its limit of time or memory; its sessions should be cancelled."""


class NotRunning(Exception):  # control flow, not a SluiceError
    """The process for jq programs can't be started now, which is no session's fault."""


def problem(program: str, *, compile_problem: CompileProblem) -> str | None:
    """Return why the program can't be used; None if it can. jq takes an empty one for `.`, which decides nothing."""
    if not program.strip():
        return "is empty"
    if len(program) > MAX_PROGRAM_CHARACTERS:
        return f"is longer than {MAX_PROGRAM_CHARACTERS} characters"
    cause = compile_problem(program)
    return None if cause is None else f"doesn't compile: {cause}"


def names_metadata(program: str) -> bool:
    """Return whether the program mentions the metadata of S3 objects, which is fetched only for such programs."""
    return METADATA in program


def decision(outputs: Iterable[object]) -> bool | None:
    """Return the first boolean among the outputs, without reading further. None if there is none before an error.

    The jq library's errors are ValueErrors.
    """
    try:
        return next((output for output in outputs if isinstance(output, bool)), None)
    except ValueError:
        return None


def document(message: Message, *, s3_metadata: Mapping[str, str] | None = None) -> str:
    """Write the message as JSON, in the form of the SQS API, with binary values in Base64.

    `s3_metadata` is the metadata of an S3 event's object, for a program that mentions it.
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
