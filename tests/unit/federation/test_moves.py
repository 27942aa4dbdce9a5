"""Messages moved from queue to queue: none lost, none overtaken, whatever fails and whenever it stops."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from sluice.errors import CallFailed
from sluice.federation.moves import Move, build_copy
from sluice.message import Message, Value
from tests.federation_fakes import FakeQueues

FIFO, PLAIN = "left.fifo", "left"
AT_MS = 1_700_000_000_000


ADAPTER: Any = object  # of this type a fake may be given in place of what it stands for


@dataclass
class Left(ADAPTER):
    """A queue that is left, `restless` where what is hidden comes again at once."""

    queues: FakeQueues
    name: str
    restless: bool = False

    def receive(self, *, most: int) -> Sequence[Message]:
        return [held.message for held in self.queues.received(self.name, most)]

    def delete(self, messages: Sequence[Message]) -> None:
        self.queues.delete_batch(self.name, messages)
        if self.restless:
            self.show(self.queues.queues[self.name])

    def release(self, messages: Sequence[Message]) -> None:
        ids = {message.message_id for message in messages}
        self.show([held for held in self.queues.queues[self.name] if held.message.message_id in ids])

    def show(self, held: Sequence[Any]) -> None:
        for each in held:
            each.visible_at_ms = 0


@dataclass
class Target:
    """Takes what it isn't told to refuse."""

    refused: frozenset[str] = frozenset()
    fails: bool = False
    took: list[dict[str, Any]] = field(default_factory=list)

    def send(self, url: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        assert url in {"target", "target.fifo"}
        if self.fails:
            raise CallFailed("SendMessageBatch", "AccessDenied", "by script")
        failed = {
            entry["Id"]: "InvalidMessageContents: no" for entry in entries if entry["MessageBody"] in self.refused
        }
        self.took += [entry for entry in entries if entry["Id"] not in failed]
        return failed

    @property
    def bodies(self) -> list[str]:
        return [each["MessageBody"] for each in self.took]


def left(groups: Sequence[str], *, fifo: bool, restless: bool = False) -> Left:
    queues = FakeQueues("https://sqs", lambda: AT_MS)
    name = FIFO if fifo else PLAIN
    queues.queues[name] = []
    for number, group in enumerate(groups):
        queues.put(name, {"MessageBody": f"{number}"} | ({"MessageGroupId": group} if fifo else {}))
    return Left(queues, name, restless)


def move(source: Left, target: Target, *, fifo: bool, **how: Any) -> Move:
    how.setdefault("may_go_on", lambda: True)
    url = f"target{'.fifo' if fifo else ''}"
    made = Move(source=source, send=target.send, choose_copy=lambda message: build_copy(url, message), fifo=fifo, **how)
    for _ in made.run():
        pass
    return made


@given(
    groups=st.lists(st.sampled_from("abc"), max_size=45),
    refused=st.frozensets(st.integers(0, 44).map(str), max_size=4),
    fifo=st.booleans(),
    restless=st.booleans(),
)
@example(groups=["a"] * 25, refused=frozenset({"3"}), fifo=True, restless=True)
def test_all_goes_but_what_is_refused_and_in_a_group_nothing_overtakes_it(
    *, groups: list[str], refused: frozenset[str], fifo: bool, restless: bool
) -> None:
    source, target = left(groups, fifo=fifo, restless=restless), Target(refused)
    done = move(source, target, fifo=fifo)
    assert sorted([*target.bodies, *source.queues.bodies(source.name)], key=int) == [f"{n}" for n in range(len(groups))]
    assert (done.moved, len(set(target.bodies))) == (len(target.bodies), len(target.bodies))
    stays = {n for n in map(int, refused) if n < len(groups)}
    for group in set(groups):
        numbers = [n for n, each in enumerate(groups) if each == group]
        stuck = next((place for place, n in enumerate(numbers) if n in stays), len(numbers))
        goes = numbers[:stuck] if fifo else [n for n in numbers if n not in stays]
        went = [int(body) for body in target.bodies if groups[int(body)] == group]
        assert (went if fifo else sorted(went)) == goes
    assert all(held.visible_at_ms == 0 for held in source.queues.queues[source.name])


def test_a_message_keeps_what_it_says_and_has_and_is_known_again() -> None:
    source, target = left([], fifo=True), Target()
    attributes = {"a": Value("Number.x", "1"), "b": Value("Binary", b"\0")}
    source.queues.put(
        FIFO,
        {
            "MessageBody": "m",
            "MessageGroupId": "g",
            "MessageAttributes": {name: value.api() for name, value in attributes.items()},
        },
    )
    [held] = source.queues.queues[FIFO]
    move(source, target, fifo=True)
    [took] = target.took
    assert took["MessageAttributes"] == {name: value.api() for name, value in attributes.items()}
    assert (took["MessageGroupId"], took["MessageDeduplicationId"]) == ("g", held.message.message_id)


def test_it_ends_after_as_many_as_were_asked_for() -> None:
    source, target = left(["a"] * 30, fifo=False), Target()
    assert move(source, target, fifo=False, most=13).moved == 13
    assert len(source.queues.bodies(PLAIN)) == 17


def test_what_is_sent_meanwhile_stays_where_only_what_is_there_is_meant() -> None:
    source, target = left(["a"] * 12, fifo=True), Target()
    source.queues.now_ms = lambda: AT_MS + 1
    for number in range(12, 20):
        source.queues.put(FIFO, {"MessageBody": f"{number}", "MessageGroupId": "a"})
    done = move(source, target, fifo=True, until_ms=AT_MS)
    assert target.bodies == [f"{n}" for n in range(12)]
    assert source.queues.bodies(FIFO) == [f"{n}" for n in range(12, 20)]
    assert done.unmoved == {}


def test_where_nothing_can_be_sent_it_ends_and_all_stays_with_the_reason() -> None:
    source = left(["a"] * 200, fifo=False)
    done = move(source, Target(fails=True), fifo=False)
    assert (done.moved, set(done.unmoved.values())) == (0, {"SendMessageBatch: AccessDenied: by script"})
    assert len(source.queues.bodies(PLAIN)) == 200
    assert all(held.visible_at_ms == 0 for held in source.queues.queues[PLAIN])


def test_it_may_be_stopped_between_batches_and_goes_on() -> None:
    source, target = left(["a"] * 30, fifo=True), Target()
    goes = iter([True, True, False])
    assert move(source, target, fifo=True, may_go_on=lambda: next(goes)).moved == 20
    assert move(source, target, fifo=True).moved == 10
    assert target.bodies == [f"{n}" for n in range(30)]


@dataclass
class Twice(Left):
    """A queue that delivers a message twice in its answer, and once more after it was deleted."""

    deleted: Sequence[Message] = ()

    def receive(self, *, most: int) -> Sequence[Message]:
        again, self.deleted = self.deleted, ()
        received = super().receive(most=2)
        return [*again, *received, *received]

    def delete(self, messages: Sequence[Message]) -> None:
        there = {held.message.message_id for held in self.queues.queues[self.name]}
        self.deleted = [message for message in messages if message.message_id in there][:2]
        super().delete(self.deleted)


def test_a_message_that_is_delivered_again_goes_and_counts_once() -> None:
    source, target = Twice(left(["a"] * 5, fifo=False).queues, PLAIN), Target()
    moved = move(source, target, fifo=False).moved
    assert (moved, sorted(target.bodies)) == (5, ["0", "1", "2", "3", "4"])
    assert not source.queues.queues[PLAIN]
