"""Dead letters of almost the greatest size: all of the message stays, and what is said has room beside it."""

import random
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.aws.dead_letters import (
    COMPRESSED,
    COMPRESSED_BODY,
    REASON,
    SOURCE,
    DeadLetters,
    build_dead_letter,
    read_dead_letter,
)
from sluice.message import MAX_MESSAGE_BYTES, NOT_TEXT, DeadLetter, Message, Value, message_size
from tests.hostile.strict_sqs import refusal

ARN = "arn:aws:sqs:eu-central-1:123456789012:orders"
WHOLE = sum(map(len, (REASON, SOURCE, "StringString", ARN)))  # of what is said, without the reason's text


def letter(
    *, room: int, attributes: int = 0, reason: str = "Malformed: why", incompressible: bool = False
) -> DeadLetter:
    own = {f"n{number}": Value("String", "v") for number in range(attributes)}
    if incompressible:
        own["noise"] = Value("Binary", random.Random(1).randbytes(MAX_MESSAGE_BYTES - 2_000))
    body = "b" * (MAX_MESSAGE_BYTES - message_size("", own) - room)
    return DeadLetter(message=Message(message_id="m", body=body, attributes=own), reason=reason, source=ARN)


@settings(max_examples=10)
@given(room=st.integers(0, 1_500), attributes=st.integers(0, 10), reason=st.text(min_size=1, max_size=300))
def test_nothing_of_the_message_is_lost_and_sqs_takes_it(room: int, attributes: int, reason: str) -> None:
    died = letter(room=room, attributes=attributes, reason=reason)
    sent = build_dead_letter(died)
    assert refusal(sent.fields()) is None
    back = read_dead_letter(Message(message_id="n", body=sent.body, attributes=sent.attributes))
    assert (back.message.body, back.message.attributes) == (died.message.body, died.message.attributes)
    assert (back.source, back.reason) == (ARN, NOT_TEXT.sub("\ufffd", reason))


@pytest.mark.parametrize("alphabet", ['é\n"\\', "".join(map(chr, range(33, 127))), "\U0001f600\U0001f4a9ﷺ"])
def test_a_body_of_any_text_leaves_room_for_its_reason(alphabet: str) -> None:
    noise = random.Random(1).choices(alphabet, k=MAX_MESSAGE_BYTES // len(alphabet[-1].encode()))
    body = "".join(noise).encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
    sent = build_dead_letter(
        DeadLetter(message=Message(message_id="m", body=body), reason="Malformed: why", source=ARN)
    )
    assert refusal(sent.fields()) is None
    back = read_dead_letter(Message(message_id="n", body=sent.body, attributes=sent.attributes))
    assert (back.message.body, back.source, back.reason) == (body, ARN, "Malformed: why")


def test_a_sender_that_writes_compressed_messages_gets_its_own_back() -> None:
    whole = build_dead_letter(letter(room=0))
    own = {name: value for name, value in whole.attributes.items() if name == COMPRESSED}
    sent = build_dead_letter(
        DeadLetter(message=Message(message_id="m", body=whole.body, attributes=own), reason="r", source=ARN)
    )
    back = read_dead_letter(Message(message_id="n", body=sent.body, attributes=sent.attributes))
    assert (back.message.body, back.message.attributes) == (whole.body, own)


@pytest.mark.parametrize("content", [b"", b"x", zlib.compress(b"1"), zlib.compress(b"[" * 9_000_000)])
def test_what_only_looks_compressed_stays_as_it_is(content: bytes) -> None:
    message = Message(message_id="m", body=COMPRESSED_BODY, attributes={COMPRESSED: Value("Binary", content)})
    assert read_dead_letter(message).message == message


@pytest.mark.parametrize(
    ("room", "source", "reason"),
    [
        (0, "", ""),
        (len(SOURCE + "String" + ARN), ARN, ""),
        (WHOLE + 3, ARN, "Mal"),
        (WHOLE + 14, ARN, "Malformed: why"),
    ],
)
def test_of_what_is_said_the_source_comes_first(room: int, source: str, reason: str) -> None:
    sent = build_dead_letter(letter(room=room, incompressible=True))
    back = read_dead_letter(Message(message_id="n", body=sent.body, attributes=sent.attributes))
    assert (back.source, back.reason) == (source, reason)


@pytest.mark.parametrize(("room", "said"), [(0, 1), (WHOLE + 3, 1), (WHOLE + 14, 0)])
def test_what_there_was_no_room_for_is_in_the_log(room: int, said: int, caplog: pytest.LogCaptureFixture) -> None:
    class Taken:
        def send_message(self, **fields: Any) -> None:
            assert refusal({key: value for key, value in fields.items() if key != "QueueUrl"}) is None

    sqs: Any = Taken()
    DeadLetters(sqs, "url").send(letter(room=room, incompressible=True))
    logged = [vars(record) for record in caplog.records if record.getMessage() == "DeadLetterSaysLess"]
    assert [(each["reason"], each["source"], each["message_id"]) for each in logged] == [
        ("Malformed: why", ARN, "m")
    ] * said
