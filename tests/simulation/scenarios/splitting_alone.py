"""Splitting with one thing in its way, and no other fault: what happens then is known, and whether it may."""

from functools import partial
from typing import Any

from sluice.errors import RequestRefused
from sluice.splitting.filters.values import Filter, Mode, QueueFilter
from sluice.splitting.operations import FindSession, KeepSession, SessionView, StartSession
from sluice.splitting.sessions.state import Status
from tests.simulation.kernel.faults import CALM
from tests.simulation.kernel.patches import NEVER_ENDS
from tests.simulation.scenarios.splitting import FIFO, MAX_RECEIVES, STANDARD, Owner, Splitting

KINDS = "abcd"


class Alone(Splitting):
    """The same deployment and the same checks, and nobody there but the deployed consumers."""

    faults = CALM
    sessions = bursts = 0
    faulty_s, settles_s = 60.0, 600.0

    def build(self) -> None:
        """Deploy, and let the one owner act."""
        super().build()
        self.world.pace = 1.0
        self.world.spawn("owner", self.act)

    def act(self) -> None:
        """Do what the scenario is about."""
        raise NotImplementedError

    def is_at_rest(self) -> bool:
        """Whether it may end: not before its time."""
        return False

    def started(self, filter_: Filter, kinds: str, *, queue_id: str = STANDARD) -> Owner:
        """Start a session of one queue."""
        asked = {queue_id: QueueFilter(filter=filter_)}
        key = f"{kinds}.{Mode.STEAL}.0"
        view = self.world.ask(self.control, StartSession(filters=asked, owner="owner", key=key))
        assert isinstance(view, SessionView)
        owner = self.owners[view.session_id] = Owner(view.session_id, kinds, Mode.STEAL)
        return owner

    def keep(self, owner: Owner, *, seconds: float) -> None:
        """Keep the session, as long as it is there."""
        until = self.world.now + seconds
        while self.world.now < until:
            self.world.sleep(8)
            try:
                self.world.ask(self.control, KeepSession(session_id=owner.session_id))
            except RequestRefused:
                return

    def send(self, kinds: str, *, queue_id: str = STANDARD) -> None:
        """Send a message of each kind, at once."""
        entries: list[dict[str, Any]] = []
        for place, kind in enumerate(kinds):
            self.made += 1
            attribute = {"DataType": "String", "StringValue": kind}
            entry = {"Id": str(place), "MessageBody": f"g-{self.made:04d}", "MessageAttributes": {"kind": attribute}}
            of_fifo = {"MessageGroupId": "g", "MessageDeduplicationId": f"d{self.made}"}
            entries.append(entry | of_fifo if queue_id == FIFO else entry)
        self.world.client("sqs").send_message_batch(QueueUrl=self.sources[queue_id].url, Entries=entries)


class NeverEnds(Alone):
    """A session's jq program never ends. Its owner keeps it; the deployed consumer waits for what is its own."""

    reason = "FilterTimedOut"
    ended = ""  # for what reason it did

    def use(self, owner: Owner) -> None:
        """Keep the session until it ends, and ask why it did."""
        self.keep(owner, seconds=self.faulty_s + self.settles_s - 60)
        found = self.world.ask(self.control, FindSession(session_id=owner.session_id))
        self.ended = "" if found is None else found.reason

    def act(self) -> None:
        """Start the session, and let others send a batch of messages."""
        owner = self.started(Filter(jq=NEVER_ENDS), "")
        self.world.sleep(10)
        for _ in range(10):
            self.world.spawn("sender", partial(self.send, KINDS))
        self.use(owner)

    def at_rest(self) -> None:
        """Check that the deployed consumer has all of it, and the session has ended for it."""
        waiting = [body for body in self.sent if "main" not in self.consumed.get(body, set())]
        self.world.check(not waiting, f"{len(waiting)} messages wait behind a session that is at fault")
        self.world.check(self.ended.startswith(self.reason), f"the session has ended for {self.ended!r}")


class Lost(NeverEnds):
    """Somebody deletes a session's queue. Its owner keeps it."""

    reason = "QueueGone"

    def act(self) -> None:
        """Start the session, harm its queue, and let others send what it wants, now and again."""
        owner = self.started(Filter(attributes=(("kind", "^a$"),)), "")
        assert self._ready(owner)
        [url] = owner.queues.values()
        self.harm(url)
        for number in range(10):
            self.world.spawn("sender", partial(self.send, KINDS), after_s=3.0 * number)
        self.use(owner)

    def harm(self, url: str) -> None:
        """Delete it."""
        self.vanished.add(url)
        self.world.sqs.remove(self.world.sqs.queues[url])


class Refuses(Lost):
    """Somebody has a session's queue take nothing any more. Its owner keeps it."""

    reason = "QueueRefused"

    def harm(self, url: str) -> None:
        """Give it a limit of size that no message is under."""
        self.world.sqs.queues[url].attributes["MaximumMessageSize"] = "1"


class JustMade(Alone):
    """A session's queue isn't found for a second after it was made, and messages come at once.

    Where no splitter is at work, a session is ready as soon as its queue is made.
    """

    def act(self) -> None:
        """Start the session, and send as soon as it is ready."""
        owner = self.started(Filter(attributes=(("kind", "^a$"),)), "a", queue_id=FIFO)
        assert self._ready(owner)
        self.ready_at[owner.session_id] = self.world.now
        self.world.spawn("sender", self.send_on)
        for url in owner.queues.values():
            self.world.spawn("reader", partial(self._read, url, owner))
        self.keep(owner, seconds=30)
        self._stop(owner)
        self.world.sleep(60)
        owner.ended = True

    def send_on(self) -> None:
        """Send for ten seconds."""
        for _ in range(100):
            self.send("a", queue_id=FIFO)
            self.world.sleep(0.1)


class Unfinished(Alone):
    """A session's consumer is done with none of its messages, more often than the source lets one fail."""

    def act(self) -> None:
        """Start the session, send it messages, and receive them again and again."""
        owner = self.started(Filter(attributes=(("kind", "^a$"),)), "a")
        assert self._ready(owner)
        self.world.spawn("sender", partial(self.send, "aaa"))
        client, [url] = self.world.client("sqs"), owner.queues.values()
        for _ in range(MAX_RECEIVES + 5):
            client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=2, VisibilityTimeout=1)
            self.world.sleep(1)
            self.world.ask(self.control, KeepSession(session_id=owner.session_id))
        self._stop(owner)

    def at_rest(self) -> None:
        """Check that the deployed consumer has them."""
        consumed = sorted(body for body, who in self.consumed.items() if "main" in who)
        self.world.check(consumed == sorted(self.sent), f"main had {consumed} of {sorted(self.sent)}")
        assert len(self.sent) == 3


class NotStarted(Alone):
    """A session can't start, as the queue that it is for isn't there."""

    def act(self) -> None:
        """Start it, and see it fail."""
        self.world.sqs.remove(self.sources[STANDARD])
        owner = self.started(Filter(attributes=(("kind", "^a$"),)), "a")
        found = self.world.ask(self.control, FindSession(session_id=owner.session_id))
        assert isinstance(found, SessionView)
        assert found.status is Status.START_ERROR
        self.world.sleep(60)
        self.before = self.control_runs()

    def control_runs(self) -> int:
        """Count the control function's invocations."""
        return self.control.made

    def at_rest(self) -> None:
        """Check that a session that is only remembered costs a sweep a minute, and hardly more."""
        minutes = (self.faulty_s + self.settles_s - 60) / 60
        often = (self.control_runs() - self.before) / minutes
        self.world.check(often < 10, f"the control function runs {often:.0f} times a minute for a session that failed")
