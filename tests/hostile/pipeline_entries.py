"""The pipeline's entries: notifications, job arguments, what is in the staging folder, the stacks' parameters."""

import contextlib
import io
import itertools
import json
import tempfile
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from sluice_jobs.arguments import parse
from sluice_spark.errors import LogError
from sluice_spark.formats.envelopes import S3Selection, unwrap
from sluice_spark.log.notifications import NotificationDeduplicator
from sluice_spark.log.segments import FOLDER, HEAD_BYTES, list_segments, parse_header, read_rows
from sluice_spark.log.store import FileStore
from sluice_spark.sqs.received import Received, parse_messages

from functions.jobs import handler as jobs
from sluice.aws.dead_letters import read_dead_letter
from sluice.errors import BadParameter
from sluice.message import Message, Value
from sluice.parameters import Parameters
from sluice.pipeline.operations import JobOutcome
from sluice.pipeline.runs import JobStep
from sluice.splitting.filters.texts import MAX_OBJECTS, Envelope
from tests.functions.conftest import CONTEXT
from tests.hostile.events import put_together
from tests.hostile.strict_sqs import as_json

TODAY = date(2026, 11, 22)
WRAPPINGS = (("sns",), ("s3",), ("eventbridge",), ("sns", "s3"), ("eventbridge", "s3"), ("sns", "eventbridge", "s3"))
CHOICE = S3Selection(removed=True)
MAX_ROWS = 100_000  # that a body of 1 MiB may become


def notification(body: str) -> str:
    """A body as splitting reads it, and by each wrapping as Spark does: what is no notification is a bad record."""
    objects = Envelope(sns=True).objects(body) or Envelope().objects(body)
    assert len(objects) <= MAX_OBJECTS
    said = [f"objects: {len(objects)}"]
    for wrapping in WRAPPINGS:
        try:
            rows = unwrap(body, wrapping, CHOICE)
        except ValueError as fault:
            said.append(f"{'+'.join(wrapping)}: bad: {str(fault)[:60]}")
        else:
            assert len(rows) <= MAX_ROWS
            said.append(f"{'+'.join(wrapping)}: {len(rows)}")
        if wrapping[-1] == "s3":
            # A body is staged or known, never neither.
            taken = [
                Received(
                    "https://sqs.test/q",
                    parse_messages(json.dumps({"Messages": [{"MessageId": "m", "Body": body}]}).encode()),
                )
            ]
            fresh, again = NotificationDeduplicator(wrapping, CHOICE).split_new_messages(taken)
            assert len(list(itertools.chain(fresh, again))) == 1
    return "; ".join(said)


def arguments(lines: str) -> str:
    """A job's arguments, one a line: a job, or what argparse says as it ends with 2."""
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints), contextlib.redirect_stdout(complaints):
            given = parse(lines.split("\n"), today=TODAY)
    except SystemExit as end:
        return f"exit {end.code}: {''.join(complaints.getvalue().partition('error: ')[1:])}"
    return f"job {given.job}"


def names(lines: str) -> str:
    """Files in the folder of segments, one name a line: their numbers, or why the log can't be read."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FOLDER).mkdir()
        for name in lines.split("\n"):
            (Path(folder) / FOLDER / name).touch()
        try:
            return f"segments: {sorted(list_segments(FileStore(Path(folder))))}"
        except LogError as fault:
            return f"refused: {type(fault).__name__}: {fault}"


def segment(content: bytes) -> str:
    """A staged file's content: its header and rows, or why it can't be read."""
    try:
        header = parse_header(content[:HEAD_BYTES])
        rows = read_rows(pa.py_buffer(content))
    except LogError as fault:
        return f"refused: {type(fault).__name__}: {fault}"
    return f"segment {header.number} of {rows.num_rows} rows"


def parameters(text: str) -> str:
    """A context as `cdk.json` and `-c` make it: parameters, or which key is wrong."""
    try:
        Parameters.from_context(json.loads(text))
    except BadParameter as fault:
        return f"refused: {fault}"
    return "read"


def asked(request: Any) -> str:
    """An operator's request of the jobs function."""
    done = JobOutcome(job="land", step=JobStep.WAIT, reason="by script")
    with put_together(jobs, SimpleNamespace(apply=lambda _: done)):
        reply = jobs.handler(request, CONTEXT)
    as_json(reply)
    return f"refused: {reply['error']}" if "error" in reply else "result"


def dead_letter(packed: str) -> str:
    """A dead letter with this text where all attributes of its message may be packed."""
    attributes = {"sluice-attributes": Value("String", packed), "sluice-reason": Value("String", "r")}
    letter = read_dead_letter(Message(message_id="m", body="b", attributes=attributes))
    return f"attributes: {', '.join(sorted(letter.message.attributes))}"
