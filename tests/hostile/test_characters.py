"""Every character that SQS takes goes through byte for byte, and every one that it refuses is known as that."""

import sys

import pytest

from sluice.message import NOT_TEXT, Value, is_attribute_name
from tests.hostile.events import record
from tests.hostile.federation_entries import message as published
from tests.hostile.rendezvous_entries import OFFERS, Rendezvous
from tests.hostile.splitting_entries import message as split
from tests.hostile.strict_sqs import NAME_CHARACTERS, refusal, takes
from tests.many_cases import some_of

PART = 0x10000
TAKEN = [
    "".join(chr(code) for code in range(start, start + PART) if takes(chr(code)))
    for start in range(0, sys.maxunicode + 1, PART)
]
ODD_NAMES = [
    "a..b",
    ".a",
    "a.",
    "AWS.a",
    "amazon.A",
    "aWs.x",
    "",
    "a b",
    "a/b",
    "\u00e9",
    "a\n",
    "a" * 257,
    "awsome",
    "AWS",
]


def test_what_is_no_text_for_sqs_is_what_sqs_refuses() -> None:
    for start in range(0, sys.maxunicode + 1, PART):
        part = [chr(code) for code in range(start, start + PART)]
        assert NOT_TEXT.findall("".join(part)) == [character for character in part if not takes(character)]


@pytest.mark.parametrize("text", some_of(TAKEN, every=4), ids=lambda text: f"{ord(text[0]):#x}")
def test_every_character_that_sqs_takes_goes_through(text: str) -> None:
    assert refusal({"MessageBody": text}) is None
    own = {"a": Value("String", text), "exchange": Value("String", "amq.fanout")}
    assert split(text, own) == "to queue-mirror, main"
    assert published(text, own) == "to bound, bridge.fifo"
    site = Rendezvous()
    client = {"ClientID": Value("String", "c"), "other": Value("String", text)}
    assert site.take(OFFERS, record(text, client, queue=OFFERS)) == []
    [reply] = [body for bodies in site.queues.queues.values() for body in bodies]
    assert reply == '{"error":"unsupported message version"}'


def test_ten_attributes_of_all_types_go_through() -> None:
    own = {f"s.{number}-_": Value(f"String.{number}", "\t\n\r\u20ac\U0001f469") for number in range(4)}
    own |= {f"n{number}": Value("Number.float", f"-{number}.5e10") for number in range(3)}
    own |= {f"b{number}": Value("Binary.gif", bytes(range(256))) for number in range(2)}
    own |= {"exchange": Value("String", "amq.match")}
    assert split("b", own) == "to main"
    assert published("b", own) == "to bound, bridge.fifo"


@pytest.mark.parametrize("name", [*ODD_NAMES, *map(chr, range(256)), *(f"a{chr(code)}b" for code in range(256))])
def test_a_name_is_one_where_sqs_takes_it(name: str) -> None:
    value = {"DataType": "String", "StringValue": "v"}
    is_taken = refusal({"MessageBody": "b", "MessageAttributes": {name: value}}) is None
    assert is_attribute_name(name) is is_taken
    assert is_taken <= NAME_CHARACTERS.issuperset(name)
