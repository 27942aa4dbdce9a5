"""`sluice dlq` from its arguments to what is in the queues after it. SQS is moto's, the stack's outputs a fake's."""

import json
from collections.abc import Sequence
from typing import Any

import boto3
import pytest
from typer.testing import CliRunner, Result

from sluice.aws.dead_letters import DeadLetters, build_dead_letter
from sluice.cli.program import app
from sluice.message import DeadLetter, Message, Value
from sluice.operator.dead_letters import DeadLetterSelection, prepare_redrive
from tests.unit.cli.test_status import REGION, FakeSite, site  # noqa: F401 - pytest finds the fixture here

HERE = f"arn:aws:sqs:{REGION}:123456789012"
OFFER = json.dumps({"offer": json.dumps({"type": "offer", "sdp": "v=0\r\nc=IN IP4 203.0.113.7\r\n"})})
FIFO: Any = {"FifoQueue": "true"}


@pytest.fixture
def queues(site: FakeSite) -> Any:  # noqa: F811 - as pytest asks for it
    """A site with two queues of dead letters, one of them FIFO, and the queues that letters came from."""
    sqs = boto3.client("sqs", region_name=REGION)
    urls = {name: sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("orders", "invoices", "dead-splitting")}
    for name in ("orders.fifo", "dead.fifo"):
        urls[name] = sqs.create_queue(QueueName=name, Attributes=FIFO)["QueueUrl"]
    told = {"dead letters of splitting": urls["dead-splitting"], "dead letters of federation, FIFO": urls["dead.fifo"]}
    site.stacks["SluiceOperations"]["DeadLetterUrls"] = json.dumps(told)
    return sqs, urls


def bury(queues: Any, body: str, *, reason: str, source: str = "orders", **attributes: str) -> None:
    sqs, urls = queues
    own = {name: Value("String", value) for name, value in attributes.items()}
    message = Message(message_id="m", body=body, attributes=own)
    DeadLetters(sqs, urls["dead-splitting"]).send(DeadLetter(message=message, reason=reason, source=f"{HERE}:{source}"))


def bury_in_order(queues: Any, bodies: Sequence[str], *, group: str) -> None:
    sqs, urls = queues
    for number, body in enumerate(bodies):
        message = Message(message_id="m", body=body, system={"MessageGroupId": group})
        letter = DeadLetter(message=message, reason="PeerRefused: no", source=f"{HERE}:orders.fifo")
        fields = build_dead_letter(letter).fields() | {"MessageDeduplicationId": f"{group}-{number}"}
        sqs.send_message(QueueUrl=urls["dead.fifo"], **fields)


def held(queues: Any, name: str) -> list[str]:
    """What the queue holds, taken out of it."""
    sqs, urls = queues
    bodies = []
    while received := sqs.receive_message(QueueUrl=urls[name], MaxNumberOfMessages=10).get("Messages"):
        for each in received:
            bodies.append(each["Body"])
            sqs.delete_message(QueueUrl=urls[name], ReceiptHandle=each["ReceiptHandle"])
    return bodies


def dlq(*arguments: str, code: int = 0, typed: str | None = None) -> Result:
    done = CliRunner().invoke(app, ["dlq", *arguments], input=typed)
    assert done.exit_code == code, f"{done.output}{done.exception!r}"
    return done


def told(*arguments: str, code: int = 0) -> Any:
    return json.loads(dlq(*arguments, "--json", code=code).stdout)


def test_a_list_counts_by_reason_and_by_where_letters_came_from(queues: Any) -> None:
    for body in "ab":
        bury(queues, body, reason="CallFailed: SendMessage: AccessDenied: no")
    bury(queues, "c", reason="Malformed: at 0", source="invoices")
    splitting, fifo = told("list")
    assert (splitting["queue"], fifo["queue"]) == ("splitting", "federation.fifo")
    assert (splitting["messages"], splitting["looked_at"], fifo["messages"]) == (3, 3, 0)
    assert [(reason["reason"], reason["letters"], reason["sources"]) for reason in splitting["reasons"]] == [
        ("CallFailed", 2, {"orders": 2}),
        ("Malformed", 1, {"invoices": 1}),
    ]
    assert splitting["oldest_ms"] == min(reason["oldest_ms"] for reason in splitting["reasons"])
    assert fifo["oldest_ms"] is None
    # And they are all still there, for whoever looks next.
    assert told("list")[0]["looked_at"] == 3
    assert "CallFailed" in dlq("list").stdout


def test_letters_are_those_of_the_stage_that_is_said(queues: Any, site: FakeSite) -> None:  # noqa: F811 - as pytest asks for it
    site.stacks["dev-SluiceOperations"] = {
        "DeadLetterUrls": json.dumps({"dead letters of splitting": queues[1]["orders"]})
    }
    queues[0].send_message(QueueUrl=queues[1]["orders"], MessageBody="of the stage")
    bury(queues, "of none", reason="Malformed: at 0")
    shown = {stage: told("show", "splitting", *stage) for stage in ((), ("--stage", "dev"))}
    assert {stage: [letter["body"] for letter in letters] for stage, letters in shown.items()} == {
        (): ["of none"],
        ("--stage", "dev"): ["of the stage"],
    }


def test_a_letter_is_shown_without_addresses_and_descriptions(queues: Any) -> None:
    bury(queues, OFFER, reason="Malformed: at 203.0.113.7", ClientID="c", ip="2001:db8::1", at="12:34:56")
    [shown] = told("show", "splitting")
    assert shown["body"] == f"[a session description in {len(OFFER)} characters]"
    assert shown["attributes"] == {"ClientID": "c", "ip": "[address]", "at": "12:34:56"}
    assert (shown["reason"], shown["said"]) == ("Malformed", "Malformed: at [address]")
    said = dlq("show", "splitting").stdout
    assert "203.0.113.7" not in said
    assert "2001:db8" not in said


def test_only_what_is_asked_for_is_shown(queues: Any) -> None:
    for number in range(12):
        bury(queues, f"{number}", reason="Malformed: x" if number % 2 else "QueueGone: x", source="invoices")
    assert {each["body"] for each in told("show", "splitting", "--reason", "Malformed")} == {*"13579", "11"}
    assert len(told("show", "splitting", "--count", "3")) == 3
    [one] = told("show", "splitting", "--count", "1")
    assert [each["body"] for each in told("show", "splitting", "--id", one["id"])] == [one["body"]]
    assert told("show", "splitting", "--source", "orders") == []


def test_letters_go_back_to_where_they_came_from_as_they_were(queues: Any) -> None:
    bury(queues, "a", reason="CallFailed: x", kind="k")
    bury(queues, "b", reason="CallFailed: x", source="invoices")
    assert told("redrive", "splitting") == {"moved": 2, "stays": {}, "stopped": False}
    sqs, urls = queues
    [back] = sqs.receive_message(QueueUrl=urls["orders"], MessageAttributeNames=["All"])["Messages"]
    assert (back["Body"], list(back["MessageAttributes"])) == ("a", ["kind"])
    assert held(queues, "invoices") == ["b"]
    assert held(queues, "dead-splitting") == []


def test_some_go_back_by_reason_from_behind_many_others(queues: Any) -> None:
    for number in range(70):
        bury(queues, f"{number}", reason="Malformed: x")
    bury(queues, "last", reason="NotDelivered: x")
    assert told("redrive", "splitting", "--reason", "NotDelivered")["moved"] == 1
    assert held(queues, "orders") == ["last"]
    assert told("redrive", "splitting", "--count", "5", "--per-second", "1000")["moved"] == 5
    assert len(held(queues, "dead-splitting")) == 65


def test_a_group_goes_back_in_order(queues: Any) -> None:
    bury_in_order(queues, [f"{number}" for number in range(25)], group="g")
    bury_in_order(queues, ["x", "y"], group="h")
    assert told("redrive", "federation.fifo")["moved"] == 27
    came = held(queues, "orders.fifo")
    assert [each for each in came if each.isdigit()] == [f"{number}" for number in range(25)]
    assert [each for each in came if not each.isdigit()] == ["x", "y"]


def test_what_has_nowhere_to_go_stays_and_says_why(queues: Any) -> None:
    bury(queues, "an offer of 812 characters", reason="OfferRefused: x", source="snowflake-broker")
    bury(queues, "lost", reason="CallFailed: x", source="gone")
    bury(queues, "fine", reason="CallFailed: x")
    done = told("redrive", "splitting", code=1)
    assert done["moved"] == 1
    assert sorted(done["stays"].values()) == [
        "an offer can't be redriven: only its length is kept, and its client has given up",
        next(text for text in done["stays"].values() if text.startswith("no such queue: ") and text.endswith("/gone")),
    ]
    assert sorted(held(queues, "dead-splitting")) == ["an offer of 812 characters", "lost"]


class Killed(BaseException):
    """As a signal that nobody handles."""


class Dying:
    """A client whose program ends before it deletes anything."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        if name == "delete_message_batch":
            raise Killed
        return getattr(self.client, name)


def test_a_redrive_that_dies_between_sending_and_deleting_loses_nothing(queues: Any) -> None:
    bury_in_order(queues, ["a", "b"], group="g")
    sqs, urls = queues
    dying: Any = Dying(sqs)
    with pytest.raises(Killed):
        list(prepare_redrive(dying, urls["dead.fifo"], DeadLetterSelection(), most=None, may_go_on=lambda: True).run())
    assert told("list")[1]["looked_at"] == 2
    assert told("redrive", "federation.fifo")["moved"] == 2
    # The queue knew by their ids what it had already.
    assert held(queues, "orders.fifo") == ["a", "b"]


def test_letters_are_thrown_away_by_who_types_the_name(queues: Any) -> None:
    bury(queues, "a", reason="Malformed: x")
    bury(queues, "b", reason="CallFailed: x")
    assert "nothing was deleted" in dlq("purge", "splitting", typed="federation\n", code=1).stderr
    assert told("list")[0]["messages"] == 2
    dlq("purge", "splitting", "--reason", "Malformed", typed="splitting\n")
    assert told("purge", "splitting", "--yes") == {"moved": 1, "stays": {}, "stopped": False}
    assert held(queues, "dead-splitting") == []
    assert held(queues, "orders") == []


def test_a_queue_that_isnt_one_is_told_with_those_that_are(queues: Any) -> None:
    assert "there are splitting, federation.fifo" in dlq("show", "orders", code=1).stderr
