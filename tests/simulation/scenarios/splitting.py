"""Splitting under faults: producers, two split queues, sessions that come and go, and the deployed consumers.

What a session's filter means is said here again, by hand: each asks for one attribute's values.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from sluice.errors import RequestRefused
from sluice.splitting.consumers.temporary_queues import PREFIX
from sluice.splitting.filters.values import Filter, Mode, QueueFilter
from sluice.splitting.operations import FindSession, KeepSession, SessionView, StartSession, StopSession, SweepQueues
from sluice.splitting.sessions.state import SESSIONS, Status
from sluice.splitting.settings import ControlSettings, Repointed, SplitConfig, SplitterSettings
from tests.simulation.kernel.faults import Kind
from tests.simulation.kernel.scheduler import Violation
from tests.simulation.kernel.world import Scenario
from tests.simulation.models.queues import Queue, Stored
from tests.simulation.models.sqs import redrive

TABLE = "splitting"
STANDARD, FIFO = "standard", "fifo"
KINDS = "abcd"
GROUPS = 2
SPLITTER_TIMEOUT_S = 20
CONTROL_TIMEOUT_S = 60
SOURCE_VISIBILITY_S = 6 * SPLITTER_TIMEOUT_S + 1
MAX_RECEIVES = 20
POLL_S = 20
READ = 0.7  # of the sessions, by their owners; what the others got goes back
SWEPT = 0.3  # of the sessions are started as a sweep comes
KNOWN_S = 300  # for which a FIFO queue knows a message by its id
DIES = 0.2  # of a reader's batches: before it has done anything with them


@dataclass(slots=True)
class Sent:
    """A message as its source queue took it: by its body, which no other has."""

    body: str
    kind: str
    group: str
    at: float
    number: int


@dataclass(slots=True)
class Owner:
    """A session as its owner knows it."""

    session_id: str
    kinds: str
    mode: Mode
    queues: dict[str, str] = field(default_factory=dict)  # URL by queue id
    ended: bool = False


class Splitting(Scenario):
    """The scenario. `programs` are jq programs that further sessions bring."""

    faulty_s = 130.0
    settles_s = 900.0
    looks_every_s = 60.0
    bursts = 2  # of messages, beside those as sessions begin and end: there most goes wrong that can
    sessions = 4
    session_filters: tuple[Filter, ...] = ()
    ready_looks = 60  # that an owner takes until the session is ready

    def build(self) -> None:
        """Deploy, and plan who does what when."""
        world = self.world
        world.dynamodb.make_table(
            TABLE,
            page_items=world.chance.choice([3, 10, 1_000]),
            expires_late_s=world.chance.choice([0.0, 60.0, 172_800.0]),
        )
        world.pace = world.chance.choice([1.0, 10.0, 60.0])
        world.sqs.counts_settle_s = world.chance.choice([0.0, 60.0])
        self._deploy()
        self.sent: dict[str, Sent] = {}  # by body
        self.consumed: dict[str, set[str]] = {}  # body: by whom
        self.excused: set[str] = set()  # went with a queue that somebody else deleted
        self.vanished: set[str] = set()  # URLs of those queues
        self.last: dict[tuple[str, str], int] = {}  # the last number of a group that a queue was sent first
        self.placed: dict[str, dict[str, float]] = {}  # body of a FIFO message: when it came to which queue's URL
        self.of_main: set[str] = set()  # URLs of all main queues that something came to
        self.forwarded: dict[str, str] = {}  # body of a FIFO message: the invocation that sent it to anybody first
        self.owners: dict[str, Owner] = {}  # by session id
        self.filters: dict[str, tuple[str, Mode, str]] = {}  # by queue URL, also of sessions that nobody knows
        self.ready_at: dict[str, float] = {}  # by session id: since when the registry says so, at the latest
        self.made = self.senders = 0
        self.is_over = False
        world.sqs.observers.append(self._observe)
        for number in range(self.sessions):
            plan = self._plan(number)
            if world.step():
                self._send(f"owner{number}", plan, after_s=world.chance.random() * self.faulty_s * 0.6)
        for number in range(self.bursts):
            at_s = world.chance.random() * self.faulty_s * 0.9
            if world.step():
                self._send(f"burst{number}", self._burst, after_s=at_s)
        for queue_id in (STANDARD, FIFO):
            for number in range(2):
                world.spawn(f"consumer-{queue_id}{number}", self._deployed_consumer(queue_id))

    def _deploy(self) -> None:
        world = self.world
        dead = self.dead = world.queue("split-dead")
        fifo_dead = self.fifo_dead = world.queue("split-dead.fifo")
        control_queue = world.queue(
            "control", {"VisibilityTimeout": str(6 * CONTROL_TIMEOUT_S), "RedrivePolicy": redrive(dead.arn, 3)}
        )
        self.sources: dict[str, Queue] = {}
        self.mains: dict[str, Queue] = {}
        of_mains: dict[str, dict[str, str]] = {}
        for queue_id, suffix, letters in ((STANDARD, "", dead), (FIFO, ".fifo", fifo_dead)):
            attributes = {
                "VisibilityTimeout": str(SOURCE_VISIBILITY_S),
                "RedrivePolicy": redrive(letters.arn, MAX_RECEIVES),
            }
            self.sources[queue_id] = world.queue(f"{queue_id}-source{suffix}", attributes)
            of_mains[queue_id] = attributes
        self.deploy_mains(of_mains)
        shared: dict[str, Any] = {
            "table": TABLE,
            "dead_letters_url": dead.url,
            "control_queue_url": control_queue.url,
            "split_queues": tuple(self.config(queue_id) for queue_id in (STANDARD, FIFO)),
        }
        splitter = world.function("splitter", SplitterSettings(**shared), timeout_s=SPLITTER_TIMEOUT_S)
        on = bool(self.mains)
        self.source_triggers = {
            STANDARD: world.lambdas.trigger(
                splitter, self.sources[STANDARD], batch_size=1_000, window_s=1, concurrency=3, enabled=on
            ),
            FIFO: world.lambdas.trigger(splitter, self.sources[FIFO], batch_size=10, concurrency=3, enabled=on),
        }
        found = [self.repointed(queue_id, trigger.uuid) for queue_id, trigger in self.source_triggers.items()]
        self.control = world.function(
            "control",
            ControlSettings(
                **shared,
                counts_settle_s=int(world.sqs.counts_settle_s),
                repointed=tuple(each for each in found if each is not None),
            ),
            timeout_s=CONTROL_TIMEOUT_S,
            failures=dead,
        )
        world.lambdas.trigger(self.control, control_queue, batch_size=10, concurrency=2)
        world.lambdas.every_minute(self.control, {"op": SweepQueues.__struct_config__.tag})

    def deploy_mains(self, attributes: dict[str, dict[str, str]]) -> None:
        """Make the queues that the deployed consumers read, with these attributes."""
        for queue_id, each in attributes.items():
            self.mains[queue_id] = self.world.queue(f"{queue_id}-main{'.fifo' if queue_id == FIFO else ''}", each)

    def config(self, queue_id: str) -> SplitConfig:
        """Say what the functions know of a split queue."""
        return SplitConfig(queue_id=queue_id, source=self.sources[queue_id].name, main=self.mains[queue_id].name)

    def repointed(self, queue_id: str, trigger_id: str) -> Repointed | None:
        """Say what of its consumers is re-pointed."""
        return None

    def is_main(self, queue: Queue) -> bool:
        """Whether deployed consumers read the queue, but for a source."""
        return queue in self.mains.values()

    def queue_id_of(self, main: Queue) -> str:
        """Find whose main queue it is."""
        return next(queue_id for queue_id, each in self.mains.items() if each is main)

    # Who is there

    def _send(self, name: str, work: Callable[[], None], *, after_s: float = 0.0) -> None:
        """Have somebody do what messages come of."""

        def send() -> None:
            work()
            self.senders -= 1

        self.senders += 1
        self.world.spawn(name, send, after_s=after_s)

    def _burst(self) -> None:
        """Send some messages within a moment, each few of them at once."""
        for _ in range(3):
            self._produce()
            self.world.sleep(self.world.chance.random())

    def _produce(self) -> None:
        chance = self.world.chance
        queue = chance.choice([self.sources[STANDARD], self.sources[FIFO]])
        entries: list[dict[str, Any]] = []
        for place in range(chance.choice([1, 2, 4])):
            self.made += 1
            group = f"g{chance.randrange(GROUPS)}"
            entry: dict[str, Any] = {
                "Id": str(place),
                "MessageBody": f"{group}-{self.made:04d}",
                "MessageAttributes": {"kind": {"DataType": "String", "StringValue": chance.choice(KINDS)}},
            }
            if queue.fifo:
                entry |= {"MessageGroupId": group, "MessageDeduplicationId": f"d{self.made}"}
            entries.append(entry)
        # What SQS took is known, whatever the producer hears.
        with suppress(ClientError, BotoCoreError):
            self.world.client("sqs").send_message_batch(QueueUrl=queue.url, Entries=entries)

    def _plan(self, number: int) -> Callable[[], None]:
        """Draw what a session's owner asks for, and how it ends."""
        chance = self.world.chance
        kinds = "".join(sorted(chance.sample(KINDS, chance.choice([1, 2]))))
        mode = chance.choice([Mode.STEAL, Mode.STEAL, Mode.MIRROR])
        lasts_s = 10 + chance.random() * 60
        end = chance.choice(["stop", "silence", "limit"])
        both = chance.choice([(STANDARD,), (FIFO,), (STANDARD, FIFO)])
        by_jq = chance.random() < 0.3
        asked = Filter(attributes=(("kind", f"^[{kinds}]$"),))
        if by_jq:
            asked = Filter(jq=f'.MessageAttributes.kind.StringValue | test("^[{kinds}]$")')
        if number < len(self.session_filters):
            asked = self.session_filters[number]
        operation = StartSession(
            filters={queue_id: QueueFilter(filter=asked, mode=mode) for queue_id in both},
            owner=f"owner{number}",
            key=f"{kinds}.{mode}.{number}",
            time_limit_s=int(lasts_s) if end == "limit" else None,
        )
        return partial(self._own, operation, kinds, mode, lasts_s=lasts_s, end=end)

    def _own(self, operation: StartSession, kinds: str, mode: Mode, *, lasts_s: float, end: str) -> None:
        """Start a session, use it, and end it as planned."""
        world = self.world
        if world.chance.random() < SWEPT:  # the schedule's rule comes at least once a minute
            sweep = {"op": SweepQueues.__struct_config__.tag}
            world.scheduler.at(
                world.now + world.chance.random(), partial(world.lambdas.invoke_later, self.control, sweep)
            )
        session_id = self._started(operation)
        if session_id is None:
            return
        owner = self.owners[session_id] = Owner(session_id, kinds, mode)
        self._send(f"burst-{session_id}", self._burst)
        if not self._ready(owner):
            return
        for queue_id, url in owner.queues.items() if world.chance.random() < READ else ():
            world.spawn(f"reader-{session_id}-{queue_id}", partial(self._read, url, owner))
        if world.happens(Kind.VANISHED_QUEUE):
            world.spawn("vandal", partial(self._delete, owner), after_s=world.chance.random() * lasts_s)
        until = world.now + lasts_s
        while world.now < until and not self.is_over:
            world.sleep(8)
            try:
                world.ask(self.control, KeepSession(session_id=session_id))
            except RequestRefused:
                owner.ended = True
                return
        self._send(f"burst-{session_id}", self._burst)
        if end == "stop" or self.is_over:
            self._stop(owner)
        world.sleep(60)
        owner.ended = True

    def _started(self, operation: StartSession) -> str | None:
        """Ask for the session, again where the function died: that one's session ends by itself."""
        for _ in range(3):
            try:
                started = self.world.ask(self.control, operation)
            except RequestRefused:
                return None
            if started is not None:
                return started.session_id
            self.world.sleep(2)
        return None

    def _ready(self, owner: Owner) -> bool:
        """Wait until the session is ready, and learn of its queues."""
        world = self.world
        for _ in range(self.ready_looks):
            found = world.ask(self.control, FindSession(session_id=owner.session_id))
            if isinstance(found, SessionView) and found.status is Status.READY:
                owner.queues = {queue.queue_id: queue.url for queue in found.queues if queue.url is not None}
                return True
            if found is not None and not isinstance(found, SessionView):
                return False
            world.sleep(1.5)
        return False

    def _stop(self, owner: Owner) -> None:
        for _ in range(3):
            try:
                if self.world.ask(self.control, StopSession(session_id=owner.session_id)) is not None:
                    return
            except RequestRefused:
                return
            self.world.sleep(2)

    def _delete(self, owner: Owner) -> None:
        """Delete one of the session's queues, as somebody might who cleans up."""
        for url in sorted(owner.queues.values()):
            queue = self.world.sqs.queues.get(url)
            if queue is not None:
                self.vanished.add(url)
                self.excused |= {message.body for message in queue.messages.values()}
                self.world.sqs.remove(queue)
                return

    def _deployed_consumer(self, queue_id: str) -> Any:
        main = self.mains[queue_id]

        def consume() -> None:
            while True:
                self._take(main.url, "main")

        return consume

    def _read(self, url: str, owner: Owner) -> None:
        while not owner.ended and url in self.world.sqs.queues:
            self._take(url, owner.session_id)

    def _take(self, url: str, who: str, *, poll_s: int = POLL_S) -> None:
        """Receive and delete, as a consumer that may fail in between."""
        client = self.world.client("sqs")
        try:
            received = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=poll_s)
            if self.world.decisions.active and self.world.chance.random() < DIES:
                return
            for message in received.get("Messages", []):
                self.consumed.setdefault(message["Body"], set()).add(who)
                client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        except (ClientError, BotoCoreError):
            self.world.sleep(1)

    # What always holds

    def _observe(self, what: str, queue: Queue, message: Stored) -> None:
        if what == "sent":
            if queue in self.sources.values():
                self._published(queue, message)
            elif self.is_main(queue):
                self._once(queue, message)
                if self._is_by("splitter", message):
                    self._sent_to_main(queue, message)
            elif queue.name.startswith(PREFIX):
                self._sent_to_session(queue, message)
        elif what == "lost":
            self.world.check(queue.url in self.vanished, f"{message.body} was sent to {queue.name}, which was deleted")
            self.excused.add(message.body)
        elif what == "expired":
            self.world.fail(f"{message.body} expired in {queue.name}")

    def _published(self, queue: Queue, message: Stored) -> None:
        kind = message.attributes["kind"]["StringValue"]
        self.sent[message.body] = Sent(message.body, kind, message.group or "", self.world.now, message.order)

    @staticmethod
    def _is_by(function: str, message: Stored) -> bool:
        return message.system["SenderId"].split(":")[1].startswith(f"{function}-")

    def _sent_to_main(self, queue: Queue, message: Stored) -> None:
        self._in_order(queue, message)
        sent = self.sent[message.body]
        queue_id = self.queue_id_of(queue)
        for session in self._stored_sessions():
            if session.status is not Status.READY or queue_id not in session.filters:
                continue
            kinds, mode, _ = session.key.split(".")
            if mode != Mode.STEAL.value or sent.kind not in kinds or session.filters[queue_id].filter.jq == "endless":
                continue
            owner = self.owners.get(session.session_id)
            url = owner.queues.get(queue_id) if owner else None
            if owner and self.vanished & {*owner.queues.values()}:
                continue  # whose other queue is gone is cancelled for both, and passed over until control knows
            ready_at = self.ready_at.setdefault(session.session_id, self.world.now)
            if url is not None and url in self.world.sqs.queues and sent.at > ready_at:
                self.world.fail(f"{sent.body} went to main, past session {session.session_id} that is ready for it")

    def _sent_to_session(self, queue: Queue, message: Stored) -> None:
        self._once(queue, message)
        self._in_order(queue, message)
        sent = self.sent[message.body]
        key = message.attributes["sluice-session"]["StringValue"]
        self.world.check(sent.kind in key.split(".")[0], f"{sent.body} of kind {sent.kind} went to session {key}")

    def _once(self, queue: Queue, message: Stored) -> None:
        """Check that what is ordered comes to a queue once, and not to a session after it was the deployed consumer's.

        It may go to main after its session has ended, which may have consumed it. A queue knows an id for five minutes.
        """
        if not queue.fifo:
            return
        places = self.placed.setdefault(message.body, {})
        is_late = any(self.world.now - at >= KNOWN_S for at in places.values())
        again = queue.url in places or (self._is_stolen(message) and bool(self.of_main & places.keys()))
        self.world.check(is_late or not again, f"{message.body} came to {queue.name}, and before to {sorted(places)}")
        places[queue.url] = self.world.now
        if self.is_main(queue):
            self.of_main.add(queue.url)

    @staticmethod
    def _is_stolen(message: Stored) -> bool:
        """Whether this is in a session's queue, and no copy."""
        key = message.attributes.get("sluice-session", {}).get("StringValue", "")
        return Mode.STEAL.value in key.split(".")

    def _in_order(self, queue: Queue, message: Stored) -> None:
        """Check that what the splitter sends comes in the order of its group.

        A message that went to somebody before is sent again, where the splitter died after that and before it could say
        so. Where its session has ended by then, that is to another, like what goes back from a session's queue.
        """
        by = message.system["SenderId"]
        if not queue.fifo or self.forwarded.setdefault(message.body, by) != by:
            return
        sent = self.sent[message.body]
        last = self.last.get((queue.url, sent.group), 0)
        self.world.check(sent.number > last, f"{sent.body} came to {queue.name} after its successor")
        self.last[queue.url, sent.group] = sent.number

    def _stored_sessions(self) -> list[Any]:
        """Read what the registry says of sessions, and note since when they are ready."""
        table = self.world.dynamodb.tables[TABLE]
        return [
            SESSIONS.from_text(item["value"]["S"])
            for item in table.partition("registry")
            if item["sk"]["S"].startswith("session#")
        ]

    def calm(self) -> None:
        """End all sessions that still live."""
        self.is_over = True

    def is_at_rest(self) -> bool:
        """Whether all who send are done, and nothing is left to do."""
        try:
            self.at_rest()
        except Violation:
            return False
        return not self.senders

    def at_rest(self) -> None:
        """Check that nothing is lost, and nothing left over."""
        world = self.world
        letters = [message.body for queue in (self.dead, self.fifo_dead) for message in queue.messages.values()]
        self._accounted(letters)
        for queue in (*self.sources.values(), *self.mains.values()):
            world.check(not queue.messages, f"{queue.name} still has {len(queue.messages)} messages")
        left = sorted(queue.name for queue in world.sqs.queues.values() if queue.name.startswith(PREFIX))
        world.check(not left, f"left over: {left}")
        alive = [session for session in self._stored_sessions() if session.status is not Status.START_ERROR]
        world.check(not alive, f"sessions in the registry: {alive}")
        most = 60 * (len(self.sent) + 10)
        world.check(world.calls_of["splitter"] <= most, f"the splitter made {world.calls_of['splitter']} calls")

    def _accounted(self, letters: list[str]) -> None:
        takers: Mapping[str, set[str]] = self.consumed
        mirrors = {owner.session_id for owner in self.owners.values() if owner.mode is Mode.MIRROR}
        for body in self.sent:
            taken = bool(takers.get(body, set()) - mirrors)
            there = body in self.excused or body in letters
            self.world.check(taken or there, f"{body} is lost")
