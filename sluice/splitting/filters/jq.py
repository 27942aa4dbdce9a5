"""Builds a jq program's input from a message, and interprets its outputs. Pure: programs run elsewhere.

An endless jq program holds Python's interpreter lock and can't be interrupted by signals or threads. So programs run in
a child process that can be killed. The functions that compile and run a program are passed in as arguments.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping

from sluice.message import Message
from sluice.splitting.filters.values import MAX_PROGRAM_CHARACTERS

TIME_LIMIT_S = 1.0  # A program may run for this many seconds on one message.

METADATA = "S3Metadata"  # The input document has the metadata of S3 objects in this field.

CompileProblem = Callable[[str], str | None]  # Returns the compiler's error, or None.
Decide = Callable[[str, str], bool | None]  # runs a program on a document; raises `ProgramTimedOut`


class ProgramTimedOut(Exception):  # This exception is control flow between process and router, not a SluiceError.
    """A jq program exceeded its limit of time or memory. The sessions that use it should be cancelled."""


class NotRunning(Exception):  # This exception is control flow, not a SluiceError.
    """The process for jq programs can't be started now. No session caused this error."""


def find_problem(program: str, *, compile_problem: CompileProblem) -> str | None:
    """Return why the jq program can't be used; None if it can. Empty programs are refused: they decide nothing."""
    if not program.strip():
        return "is empty"
    if len(program) > MAX_PROGRAM_CHARACTERS:
        return f"is longer than {MAX_PROGRAM_CHARACTERS} characters"
    cause = compile_problem(program)
    return None if cause is None else f"doesn't compile: {cause}"


def mentions_metadata(program: str) -> bool:
    """Return whether the program mentions the metadata of S3 objects, which is fetched only for such programs."""
    return METADATA in program


def find_decision(outputs: Iterable[object]) -> bool | None:
    """Return the first boolean among a program's outputs; None if there is an error or no boolean. Reads no further.

    The jq library raises its errors as ValueErrors.
    """
    try:
        return next((output for output in outputs if isinstance(output, bool)), None)
    except ValueError:
        return None


def build_document(message: Message, *, s3_metadata: Mapping[str, str] | None = None) -> str:
    """Write the message as JSON, in the form of the SQS API, with binary values in Base64.

    `s3_metadata` is the metadata of an S3 event's object, if the program mentions such metadata.
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
