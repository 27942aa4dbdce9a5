"""Random programs of calls to SQS: queues, then steps that name queues and receipt handles by their number.

A number is taken modulo what there is when the step comes, so that every part of a program is one too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from hypothesis import strategies as st

from tests.harsh.two_clouds import TwoClouds

PARTS, PART_STEPS = 6, 15
T = TypeVar("T")
SYSTEM = (
    "All",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SentTimestamp",
    "SequenceNumber",
    "MessageGroupId",
    "MessageDeduplicationId",
    "DeadLetterQueueSourceArn",
)
ATTRIBUTES = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
    "VisibilityTimeout",
    "DelaySeconds",
    "MessageRetentionPeriod",
    "RedrivePolicy",
    "FifoQueue",
    "ContentBasedDeduplication",
    "QueueArn",
)
ELSEWHERE = 3  # a queue's number in a step whose handles may be of any queue
NOT_A_HANDLE = "not-a-handle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A queue to be made, with one for its dead letters where it has a most of receives."""

    fifo: bool
    attributes: Mapping[str, str]
    max_receives: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """A call on a queue, or the passing of time. Handles in it are numbers."""

    call: str
    queue: int = 0
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Program:
    """Queues, and what is done with them."""

    shapes: tuple[Shape, ...]
    steps: tuple[Step, ...]


def programs() -> st.SearchStrategy[Program]:
    """Draw programs: their queues are all standard, or all FIFO, so that most messages are none that is refused."""
    return st.one_of(*(_programs(fifo=fifo) for fifo in (False, True)))


def _programs(*, fifo: bool) -> st.SearchStrategy[Program]:
    shapes = st.lists(_shapes(fifo=fifo), min_size=1, max_size=2).map(tuple)
    return st.builds(Program, shapes, several(_steps(fifo=fifo)))


def several(steps: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    """Draw some thirty steps, more than a list of Hypothesis's has by itself, that shrink as a list does."""
    parts = [st.lists(steps, max_size=PART_STEPS)] * PARTS
    return st.tuples(*parts).map(lambda drawn: tuple(chain.from_iterable(drawn)))


def play(program: Program, clouds: TwoClouds) -> None:
    """Run a program on both clouds, which compare each answer."""
    urls = [url for place, shape in enumerate(program.shapes) for url in _made(shape, f"queue{place}", clouds)]
    handles: list[str] = []
    queue_of: dict[str, str] = {}
    deleted: set[str] = set()
    for step in program.steps:
        url = urls[step.queue % len(urls)]
        if step.call == "wait":
            clouds.wait(step.given["seconds"])
            continue
        if step.call == "create_queue":
            # The name of one that was deleted is taken for a minute: of that the embedded cloud knows when it is harsh.
            if url not in deleted:
                clouds.call("create_queue", {"QueueName": url.rpartition("/")[2], **step.given})
            continue
        given = _with(handles, step.given)
        named = [each["ReceiptHandle"] for each in [given, *given.get("Entries", ())] if "ReceiptHandle" in each]
        if named and step.queue != ELSEWHERE:
            url = queue_of.get(named[0], url)
        answer = clouds.call(step.call, {"QueueUrl": url, **given})
        if step.call == "delete_queue":
            deleted.add(url)
        received = [message["ReceiptHandle"] for message in answer.get("Messages", ())]
        handles += received
        queue_of |= dict.fromkeys(received, url)


def weighted(choices: Mapping[st.SearchStrategy[T], int]) -> st.SearchStrategy[T]:
    """Draw of each as often as said; `one_of` takes the same one twice for one."""
    each = [choice for choice, weight in choices.items() for _ in range(weight)]
    return st.integers(0, len(each) - 1).flatmap(lambda place: each[place])


def _made(shape: Shape, name: str, clouds: TwoClouds) -> list[str]:
    """Make a queue, and before it that of its dead letters; their URLs."""
    suffix = ".fifo" if shape.fifo else ""
    kind = {"FifoQueue": "true"} if shape.fifo else {}
    urls = []
    redrive = {}
    if shape.max_receives is not None:
        dead = {"QueueName": f"{name}-dead{suffix}", "Attributes": kind}
        urls = [clouds.call("create_queue", dead)["QueueUrl"]]
        named = {"QueueUrl": urls[0], "AttributeNames": ["QueueArn"]}
        arn = clouds.call("get_queue_attributes", named)["Attributes"]["QueueArn"]
        policy = {"deadLetterTargetArn": arn, "maxReceiveCount": shape.max_receives}
        redrive = {"RedrivePolicy": json.dumps(policy)}
    attributes = {**shape.attributes, **kind, **redrive}
    return [clouds.call("create_queue", {"QueueName": name + suffix, "Attributes": attributes})["QueueUrl"], *urls]


def _with(handles: list[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Put handles in the place of their numbers; before there is any, one that is none."""
    found = dict(given)
    if "Entries" in found:
        found["Entries"] = [_with(handles, entry) for entry in found["Entries"]]
    number = found.get("ReceiptHandle")
    if number is not None:
        # The last are asked for most often: they are likely in flight.
        found["ReceiptHandle"] = handles[-1 - number % len(handles)] if handles and number >= 0 else NOT_A_HANDLE
    return found


def _shapes(*, fifo: bool) -> st.SearchStrategy[Shape]:
    settings = {
        "VisibilityTimeout": st.sampled_from(["0", "1", "10", "30"]),
        "DelaySeconds": st.sampled_from(["0", "5"]),
        "MessageRetentionPeriod": st.sampled_from(["60", "1000", "345600"]),
    }
    if fifo:
        settings["ContentBasedDeduplication"] = st.sampled_from(["true", "false"])
        settings["DeduplicationScope"] = st.sampled_from(["queue", "messageGroup"])
    attributes = st.fixed_dictionaries({}, optional=settings)
    return st.builds(Shape, fifo=st.just(fifo), attributes=attributes, max_receives=st.sampled_from([None, 1, 1, 2, 3]))


def _steps(*, fifo: bool) -> st.SearchStrategy[Step]:
    queues = st.sampled_from([0, 0, 0, 0, 0, 0, 1, 1, 2, 3])
    most = st.sampled_from([1, 2, 3, 10, 10])
    handle = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 8, -1])
    timeout = st.sampled_from([0, 0, 0, 1, 5, 10, 30, 100, 43_200, 43_201, -1])
    receive = st.fixed_dictionaries(
        {"MaxNumberOfMessages": most},
        optional={
            "VisibilityTimeout": st.sampled_from([0, 1, 1, 5, 5, 5, 5, 20, 20, 20, 20, 20, 43_200, 43_201]),
            "MessageSystemAttributeNames": st.lists(st.sampled_from(SYSTEM), max_size=3),
            "MessageAttributeNames": st.lists(st.sampled_from(["All", ".*", "color", "shape", "size"]), max_size=2),
        },
    )
    delete = {"ReceiptHandle": handle}
    change = delete | {"VisibilityTimeout": timeout}
    calls = {
        "send_message": _messages(fifo=fifo),
        "send_message_batch": _batches(_messages(fifo=fifo)),
        "receive_message": receive,
        "delete_message": st.fixed_dictionaries(delete),
        "delete_message_batch": _batches(st.fixed_dictionaries(delete)),
        "change_message_visibility": st.fixed_dictionaries(change),
        "change_message_visibility_batch": _batches(st.fixed_dictionaries(change)),
        "get_queue_attributes": st.just({"AttributeNames": ATTRIBUTES}),
        "set_queue_attributes": st.fixed_dictionaries({"Attributes": _settings()}),
        "create_queue": st.fixed_dictionaries({"Attributes": _settings(FifoQueue=st.just("true"))}),
    }
    weights = {
        "send_message": 4,
        "send_message_batch": 4,
        "receive_message": 8,
        "delete_message": 4,
        "change_message_visibility": 6,
        "get_queue_attributes": 2,
    }
    waits = st.sampled_from([0.5, 1, 2, 5, 5, 5, 9.5, 10, 10, 30, 30, 60, 299.5, 300, 1_000])
    steps = {st.builds(Step, st.just(call), queues, given): weights.get(call, 1) for call, given in calls.items()}
    steps[st.builds(Step, st.just("wait"), st.just(0), st.fixed_dictionaries({"seconds": waits}))] = 6
    # Seldom: what comes after it in a program finds nothing.
    delete_queue = st.builds(Step, st.just("delete_queue"), queues)
    return weighted({weighted(steps): 99, delete_queue: 1})


def _settings(**more: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries(
        {},
        optional={
            **more,
            "VisibilityTimeout": st.sampled_from(["0", "20", "43201", "-1", "many"]),
            "DelaySeconds": st.sampled_from(["0", "2", "901"]),
            "MessageRetentionPeriod": st.sampled_from(["59", "60", "86400"]),
            "DeduplicationScope": st.sampled_from(["queue", "messageGroup"]),
        },
    )


def _messages(*, fifo: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Draw messages that their kind of queue takes, and now and then one that it may not."""
    values = st.builds(lambda text: {"DataType": "String", "StringValue": text}, st.sampled_from(["red", "round"]))
    body: dict[str, st.SearchStrategy[Any]] = {"MessageBody": st.sampled_from(["one", "two", "three", "four"])}
    groups, ids = st.sampled_from(["a", "a", "b", "c"]), st.sampled_from(["1", "2", "3", "4", "5", "6", "7"])
    more: dict[str, st.SearchStrategy[Any]] = {
        "MessageGroupId": groups,
        "MessageAttributes": st.dictionaries(st.sampled_from(["color", "shape"]), values, max_size=2),
    }
    if fifo:
        usual = st.fixed_dictionaries(body | {"MessageGroupId": groups, "MessageDeduplicationId": ids})
    else:
        usual = st.fixed_dictionaries(body, optional=more | {"DelaySeconds": st.sampled_from([0, 0, 3, 10])})
    odd: dict[str, st.SearchStrategy[Any]] = {
        "MessageGroupId": st.sampled_from(["a", "b", "with space", "x" * 129]),
        "MessageDeduplicationId": st.sampled_from(["1", "2", "x" * 129, "with space", "{[%]}"]),
        "DelaySeconds": st.sampled_from([0, 3, 900, 901, -1]),
    }
    return weighted({usual: 9, st.fixed_dictionaries(body, optional=more | odd): 1})


def _batches(entries: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw batches, now and then one with ids that are refused, too many entries, or none."""
    usual = st.lists(entries, min_size=1, max_size=8).map(
        lambda found: [{"Id": str(place), **entry} for place, entry in enumerate(found)]
    )
    named = st.builds(
        lambda name, entry: {"Id": name, **entry}, st.sampled_from(["a", "b", "", "not valid", "x" * 81]), entries
    )
    odd = st.one_of(st.lists(named, max_size=2), st.lists(named, min_size=11, max_size=11))
    return weighted({usual: 15, odd: 1}).map(lambda found: {"Entries": found})
