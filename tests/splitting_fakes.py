"""Splitting's adapters in memory: a registry with revisions, and queues that can vanish or refuse."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from sluice.errors import BadConsumer, CallFailed, QueueGone
from sluice.message import Message, Value
from sluice.splitting.consumers.targets import Target, describe_target
from sluice.splitting.filters.index import RequiredLiterals, fold
from sluice.splitting.pointing import Pointing
from sluice.splitting.sessions.state import Registry, Session, SplitterAnnouncement
from sluice.splitting.settings import ControlSettings, Repointed, SplitConfig

SETTINGS = ControlSettings(
    table="table",
    dead_letters_url="https://sqs/dead",
    control_queue_url="https://sqs/control",
    split_queues=(SplitConfig(queue_id="q", source="source", main="main", tags={"team": "ours"}),),
    counts_settle_s=0,
)

# A fake stands for the adapter of which it has the methods: of this type it may be given in its place.
ADAPTER: Any = object


@dataclass
class FakeConsumers(ADAPTER):
    """Texts that name queues, by target, and the splitter's triggers. What moves has moved at the second look."""

    texts: dict[str, str] = field(default_factory=dict)
    triggers: dict[str, bool] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)
    roles: dict[str, str | BadConsumer] = field(default_factory=dict)  # what a role lacks, or why nobody knows
    failing: set[str] = field(default_factory=set)  # AWS refuses to change them, for now
    error: CallFailed = field(default_factory=lambda: CallFailed("PutParameter", "ThrottlingException", ""))
    warnings: list[tuple[str, str, str]] = field(default_factory=list)

    def read_original(self, target: Target, *, queue: str) -> str:
        text = self._text(target)
        if text != queue:
            raise BadConsumer(describe_target(target), f"doesn't name {queue}")
        return text

    def point(self, target: Target, original: str, *, queue: str, instead_of: Collection[str]) -> bool:
        assert original
        if describe_target(target) in self.failing:
            raise self.error
        text = self._text(target)
        if text not in {queue, *instead_of}:
            raise BadConsumer(describe_target(target), f"doesn't name {instead_of}")
        self.texts[describe_target(target)] = queue
        return text == queue

    def check_role(self, target: Target, *, source: str, queue: str) -> str:
        assert queue != source
        found = self.roles.get(describe_target(target), "")
        if isinstance(found, BadConsumer):
            raise found
        return found

    def reads(self, target: Target, *, queue: str) -> bool:
        if describe_target(target) in self.failing:
            raise CallFailed("GetParameter", "ThrottlingException", "")
        return self._text(target) == queue

    def is_on(self, trigger_id: str) -> bool | None:
        return self.triggers[trigger_id]

    def switch(self, trigger_id: str, *, on: bool) -> None:
        self.triggers[trigger_id] = on

    def warn(self, what: str, queue_id: str, reason: str) -> None:
        self.warnings.append((what, queue_id, reason))

    def _text(self, target: Target) -> str:
        if describe_target(target) in self.bad:
            raise BadConsumer(describe_target(target), "there is none")
        return self.texts[describe_target(target)]


def pointing(
    *repointed: Repointed,
    consumers: FakeConsumers | None = None,
    now_ms: Callable[[], int] = lambda: 0,
    holder: str = "me",
) -> Pointing:
    """One invocation's, of consumers in memory."""
    found = consumers or FakeConsumers()
    return Pointing(
        repointed={each.queue_id: each for each in repointed},
        consumers=found,
        triggers=found,
        holder=holder,
        now_ms=now_ms,
        warn=found.warn,
    )


@dataclass
class FakeRegistryStore(ADAPTER):
    """Saves on the condition of the revision; `rivals` are writes by somebody else, each just before one of ours."""

    registry: Registry = field(default_factory=Registry)
    _revision: int = 0
    rivals: int = 0
    loads: int = 0
    heartbeats: dict[str, int] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    tick_due_at_ms: int = 0

    def read_version(self) -> int:
        return self.registry.version

    def load(self) -> tuple[Registry, int]:
        self.loads += 1
        return self.refresh(self.registry), self._revision

    def read_revision(self) -> int:
        return self._revision

    def read_session(self, session_id: str) -> Session | None:
        return self.registry.sessions.get(session_id)

    def refresh(self, registry: Registry) -> Registry:
        sessions = {session_id: self._heard(session) for session_id, session in registry.sessions.items()}
        return replace(registry, sessions=sessions, splitters=self.registry.splitters)

    def save(self, before: Registry, after: Registry, *, revision: int) -> int | None:
        if self.rivals:
            self.rivals -= 1
            self._revision += 1
        if revision != self._revision:
            return None
        if replace(after, splitters=before.splitters) == before:
            return revision
        self.registry = replace(after, splitters=self.registry.splitters)
        self._revision += 1
        return self._revision

    def announce_version(self, splitter_id: str, *, version: int, at_ms: int) -> None:
        splitters = {**self.registry.splitters, splitter_id: SplitterAnnouncement(version, at_ms)}
        self.registry = replace(self.registry, splitters=splitters)

    def record_heartbeat(self, session_id: str, *, at_ms: int) -> None:
        self.heartbeats[session_id] = at_ms

    def _heard(self, session: Session) -> Session:
        return replace(
            session, heartbeat_at_ms=max(session.heartbeat_at_ms, self.heartbeats.get(session.session_id, 0))
        )

    def add_count(self, session_id: str, number: int, *, at_ms: int) -> None:
        self.sent[session_id] += number

    def read_counts(self) -> Mapping[str, int]:
        return self.sent

    def record_end(self, session_id: str, reason: str, *, at_ms: int) -> None:
        self.reasons[session_id] = reason

    def find_ended_reason(self, session_id: str) -> str | None:
        return self.reasons.get(session_id)

    def claim_tick(self, *, due_at_ms: int, now_ms: int) -> bool:
        if now_ms < self.tick_due_at_ms <= due_at_ms:
            return False
        self.tick_due_at_ms = due_at_ms
        return True


@dataclass
class FakeSplitQueues(ADAPTER):
    """Queues by name. `refused` bodies fail one by one; `gone`, `failing` and `refusing` queues as a whole."""

    messages: defaultdict[str, list[Message]] = field(default_factory=lambda: defaultdict(list))
    attributes: dict[str, Mapping[str, str]] = field(default_factory=dict)
    tags: dict[str, Mapping[str, str]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    refusing: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    calls: list[tuple[str, str]] = field(default_factory=list)

    def send_batch(self, name: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        self._call("send", name)
        failed = {}
        for entry in entries:
            if entry["MessageBody"] in self.refused:
                failed[entry["Id"]] = "InternalError: by script"
            else:
                self.messages[name].append(_received(entry))
        return failed

    def describe(self, name: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        self._call("describe", name)
        return self.attributes.get(name, {}), self.tags.get(name, {})

    def create(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> None:
        self._call("create", name)
        self.attributes[name], self.tags[name] = attributes, tags
        self.messages[name] = []

    def delete(self, name: str) -> None:
        if name in self.failing:
            self._call("delete", name)
        self.calls.append(("delete", name))
        self.messages.pop(name, None)
        self.gone.add(name)

    def receive_batch(self, name: str) -> Sequence[Message]:
        self._call("receive", name)
        return self.messages[name][:10]

    def delete_batch(self, name: str, messages: Sequence[Message]) -> None:
        self._call("delete messages", name)
        self.messages[name] = [message for message in self.messages[name] if message not in messages]

    def count(self, name: str) -> int:
        self._call("count", name)
        return len(self.messages[name])

    def names(self, prefix: str) -> Iterator[str]:
        return (name for name in list(self.messages) if name.startswith(prefix))

    def bodies(self, name: str) -> list[str]:
        return [message.body for message in self.messages[name]]

    def _call(self, what: str, name: str) -> None:
        self.calls.append((what, name))
        if name in self.gone:
            raise QueueGone(name)
        if name in self.failing:
            raise CallFailed(what, "InternalError", "by script")
        if name in self.refusing:
            raise CallFailed(what, "AccessDenied", "by script")


def _received(entry: Mapping[str, Any]) -> Message:
    attributes = {
        name: Value(value["DataType"], value.get("StringValue", value.get("BinaryValue")))
        for name, value in entry.get("MessageAttributes", {}).items()
    }
    return Message(
        message_id=entry.get("MessageDeduplicationId", entry["MessageBody"]),
        body=entry["MessageBody"],
        attributes=attributes,
        system={"MessageGroupId": entry["MessageGroupId"]} if "MessageGroupId" in entry else {},
    )


def meets_need(text: str, need: RequiredLiterals) -> bool:
    """Whether the text can have the pattern in it whose need this is."""
    folded = fold(text)
    return folded in need.literals if need.is_whole else need.literals[0] in folded
