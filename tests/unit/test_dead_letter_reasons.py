"""What dead letters died of, by name; every error that can end a message declares one, and the runbook has them all."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sluice
from sluice.aws.dead_letters import build_dead_letter, read_dead_letter
from sluice.aws.federation.publisher import NotPublished
from sluice.dead_letter_reasons import Reason, classify_reason
from sluice.errors import (
    DestinationFault,
    HeldBack,
    Malformed,
    NotReached,
    PeerRefused,
    SenderFault,
    SluiceError,
    describe_reason,
)
from sluice.message import DeadLetter, Message, Value

RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
SOURCE = "arn:aws:sqs:eu-central-1:123456789012:orders"
# Held back is never dead, and what publishes for users raises in their programs.
NEVER_LETTERS = {HeldBack, NotReached, NotPublished}
DEPLOYED = ("aws", "federation", "pipeline", "rendezvous", "splitting")


def subclasses(kind: type[SluiceError]) -> Iterator[type[SluiceError]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def test_every_error_that_can_end_a_message_declares_its_reason() -> None:
    for room in DEPLOYED:
        for module in pkgutil.walk_packages([str(Path(sluice.__path__[0]) / room)], f"sluice.{room}."):
            importlib.import_module(module.name)
    ours = {
        subclass
        for kind in (SenderFault, DestinationFault)
        for subclass in subclasses(kind)
        if subclass.__module__.startswith("sluice.")
    }
    assert ours > {Malformed, PeerRefused}
    assert {error for error in ours if error.dead_letter_reason is None} == NEVER_LETTERS
    assert all("dead_letter_reason" in vars(error) for error in ours - NEVER_LETTERS), "a reason is an error's own"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Malformed: at 3", Reason.MALFORMED),
        ("CallFailed: SendMessage: AccessDenied: no: really", Reason.CALL_FAILED),
        ("the route orders is gone", Reason.ROUTE_GONE),
        ("KeyError: 'id'", Reason.UNEXPECTED),
        ("Mal", Reason.UNEXPECTED),  # of which there was no room for more
    ],
)
def test_a_letter_that_was_buried_has_its_errors_name(said: str, reason: Reason) -> None:
    sent = build_dead_letter(DeadLetter(message=Message(message_id="m", body="b"), reason=said, source=SOURCE))
    assert (
        classify_reason(read_dead_letter(Message(message_id="n", body=sent.body, attributes=sent.attributes))) is reason
    )


def test_a_letter_begins_with_its_errors_reason_or_the_class_of_an_error_that_nobody_foresaw() -> None:
    assert describe_reason(PeerRefused("AccessDenied")) == "PeerRefused: AccessDenied"
    assert describe_reason(KeyError("id")) == "KeyError: 'id'"


def test_what_sqs_has_moved_says_from_where_and_goes_back_there() -> None:
    moved = read_dead_letter(Message(message_id="m", body="b", system={"DeadLetterQueueSourceArn": SOURCE}))
    assert (classify_reason(moved), moved.source) == (Reason.NEVER_DELETED, SOURCE)


def test_what_lambda_gave_up_is_told_from_what_sqs_moved() -> None:
    """An asynchronous event comes as it was; of a stream there is only where the records are."""
    error = {"ErrorMessage": Value("String", "timed out"), "ErrorCode": Value("Number", "200")}
    assert classify_reason(read_dead_letter(Message(message_id="m", body="{}", attributes=error))) is Reason.GIVEN_UP
    of_stream = '{"requestContext": {"condition": "RetryAttemptsExhausted"}, "DDBStreamBatchInfo": {}}'
    assert classify_reason(read_dead_letter(Message(message_id="m", body=of_stream))) is Reason.GIVEN_UP


def test_a_letter_without_room_for_its_reason_is_unsaid() -> None:
    assert classify_reason(read_dead_letter(Message(message_id="m", body="b"))) is Reason.UNSAID


def test_the_runbook_has_every_reason_and_no_other() -> None:
    _, _, after = RUNBOOK.read_text().partition("\n## Reasons of dead letters\n")
    assert set(re.findall(r"^### (\w+)$", after, re.MULTILINE)) == set(map(str, Reason))
