"""What a rendezvous promises, watched as it happens: who was given which offer, who heard what, and when.

A client is known by the name in its offer's description, which a proxy's answer says again beside its Sid.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from sluice.aws.rendezvous.statistics_store import read_row
from sluice.rendezvous.counts.events import OfferEvent
from sluice.rendezvous.counts.statistics import FAMILIES, PROXIES, Counts, tally
from sluice.rendezvous.counts.stream import read_events
from tests.fakes import FakeStatisticsStore
from tests.simulation.kernel.faults import OF_CALLS, Kind
from tests.simulation.kernel.world import World
from tests.simulation.models.lambdas import Function
from tests.simulation.models.queues import Queue, Stored
from tests.simulation.models.streams import Stream

TABLE, WAITING = "rendezvous", "waiting"
ANSWER_QUEUE, MAILBOX = "snowflake-client-", "sluice-mailbox-"
NO_PROXIES = "no snowflake proxies currently available"
TIMED_OUT = "timed out waiting for answer!"
PATIENCE_S = 5.0
HEARS_S = 8.5  # after the offer: six seconds, a look-up that is late, and what calls take
BACKS_OFF_S = 4.0  # more after a throttled call: botocore waits up to one second, then up to two
HEARS_OF_PROXY_S = 30.0  # after an offer that a proxy has: 26 seconds, and what calls take
BUSY_S = 12.0  # for which an invocation that hangs keeps others from being served
LATE_S = 3.0  # an offer that no broker has by then waits behind others
SWEPT_WITHIN_S = 180.0  # after its expiry an item is deleted
SURE_MS = 500  # clocks are off by less
TAKEN_S = 1.5  # after it was sent, in which an offer is taken by whoever comes
SID_RESTS_S = 10.0
BROKER_CALLS, PROXY_CALLS = 15, 15  # for each message, and for each request


class Reply(NamedTuple):
    """A message in an answer queue, or a letter with an answer; `by` is the invocation that sent it."""

    by: str
    text: str


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A client's attempt. `sent` counts the messages that SQS took, or its one request."""

    name: str
    nat: str
    began_at: float
    refusal: str | None = None  # what a malformed offer is refused with
    sent: int = 0
    deliveries: list[float] = field(default_factory=list)
    invocations: set[str] = field(default_factory=set)  # that had it, or an answer to it, in hand
    polls: set[str] = field(default_factory=set)  # that letters gave it to
    sids: set[str] = field(default_factory=set)  # of the proxies that were given it
    replies: list[Reply] = field(default_factory=list)
    heard: str | None = None
    heard_at: float = 0.0


@dataclass(slots=True, kw_only=True)
class Watch:
    """Sees every message, and what callers tell it. Raises `Violation`."""

    world: World
    broker: Function
    proxy: Function
    offers: Queue
    ingress: Queue  # where events are published, if a queue is bound
    stream: Stream
    is_bound: bool
    dead: Queue
    attempts: dict[str, Attempt] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)  # the broker's invocations
    poll_offers: dict[str, str] = field(default_factory=dict)  # what each poll was given, by its id
    shared_sids: set[str] = field(default_factory=set)  # that more than one poll has
    may_fail: int = 0  # requests, one for each mailbox that somebody else deleted
    has_failed: int = 0  # requests whose invocation met no fault
    counts: FakeStatisticsStore = field(default_factory=FakeStatisticsStore)  # of what the stream tells
    told_ids: set[str] = field(default_factory=set)
    published_ids: set[str] = field(default_factory=set)
    requests: int = 0

    # What happens

    def observe(self, what: str, queue: Queue, message: Stored) -> None:
        """Hear of a message, as an observer of `Sqs`."""
        try:
            self._observe(what, queue, message)
        except Exception as error:  # noqa: BLE001 - or the function that sent it would take it for its own
            self.world.fail(f"the watch doesn't understand {message.body}: {error!r}")

    def _observe(self, what: str, queue: Queue, message: Stored) -> None:
        if queue is self.offers:
            self._offered(what, queue, message)
        elif queue is self.ingress and what == "sent":
            self.published_ids.add(json.loads(message.body)["id"])
        elif queue.name.startswith(ANSWER_QUEUE) and what in {"sent", "lost"}:
            self._replied(queue, message)
        elif queue.name.startswith(MAILBOX) and what == "sent":
            self._written(message)
        if what == "expired" and queue is self.offers:
            self.world.fail(f"a message expired in {queue.name}")

    def _offered(self, what: str, queue: Queue, message: Stored) -> None:
        actor = self._invoked() if what == "received" else ""
        client_id = message.attributes.get("ClientID", {}).get("StringValue", "")
        attempt = self.attempts.get(client_id)
        if attempt is not None and what == "sent":
            attempt.sent += 1
        elif attempt is not None and what == "received":
            attempt.deliveries.append(self.world.now)
            attempt.invocations.add(actor)

    def _invoked(self) -> str:
        """Note the invocation that is about to get what was received."""
        actor = f"broker-{self.broker.made + 1}"
        self.began[actor] = self.world.now
        return actor

    def told(self, record: Mapping[str, Any]) -> None:
        """Hear of what the table's stream tells, before anybody else does."""
        events = read_events(record)
        for event in events:
            is_new = event.id not in self.told_ids
            self.world.check(is_new or not isinstance(event, OfferEvent), f"an offer ends twice: {event}")
            self.told_ids.add(event.id)
        self.counts.add([counts for event in events if (counts := tally(event))])

    def _replied(self, queue: Queue, message: Stored) -> None:
        attempt = self.attempts.get(queue.name.removeprefix(ANSWER_QUEUE))
        if attempt is None:
            self.world.fail(f"a reply for nobody in {queue.name}")
            return
        reply, by = json.loads(message.body), message.system["SenderId"].split(":")[1]
        if "answer" in reply:
            self.check_answer(attempt, reply["answer"])
        attempt.replies.append(Reply(by, message.body))

    def _written(self, message: Stored) -> None:
        """See a letter: an offer for a poll, or an answer for a client over HTTP; who has hung up may be timed out."""
        letter = json.loads(message.body)
        if "error" in letter:
            return
        if "answer" in letter:
            name, sid = named(letter["answer"])
            self.world.check(name in self.attempts, f"a letter with {name}'s answer")
            if sid not in self.shared_sids:  # such an answer may be on its way to another client: `SidAgain`
                self.attempts[name].replies.append(Reply(message.system["SenderId"].split(":")[1], message.body))
            return
        name, poll_id = named(letter["offer"])[0], letter["for"]
        had = self.poll_offers.setdefault(poll_id, name)
        self.world.check(had == name, f"one poll was given the offers of {had} and {name}")
        attempt = self.attempts[name]
        attempt.polls.add(poll_id)
        may = self._may_be_given(attempt)
        self.world.check(len(attempt.polls) <= may, f"{name}'s offer went to {len(attempt.polls)} polls")

    # What callers tell

    def given(self, name: str, sid: str) -> None:
        """Check that a proxy was given an offer that no other has."""
        attempt = self.attempts[name]
        attempt.sids.add(sid)
        may = self._may_be_given(attempt)
        self.world.check(len(attempt.sids) <= may, f"{name}'s offer was given to {sorted(attempt.sids)}")

    def _may_be_given(self, attempt: Attempt) -> int:
        """Say to how many proxies an offer may go: to one, and again where no answer said that it is written down.

        A poll may have taken it in between, and who writes it again can't know.
        """
        lost = sum(
            each.kind is Kind.LOST_ANSWER and each.who in attempt.invocations for each in self.world.decisions.taken
        )
        return attempt.sent + lost

    def taken(self, name: str, *, by: str) -> None:
        """Check that an answer that was taken was sent on."""
        is_sent = any(reply.by == by for reply in self.attempts[name].replies)
        self.world.check(is_sent, f"an answer to {name} was taken and not sent on")

    def heard(self, attempt: Attempt, reply: str) -> None:
        """Check what a client is told: the answer to its own offer, or why there is none."""
        read = json.loads(reply)
        if "answer" in read:
            self.check_answer(attempt, read["answer"])
        if attempt.refusal is not None:
            self.world.check(read == {"error": attempt.refusal}, f"{attempt.name} heard {reply}")
        elif "error" in read and not self.met_a_fault({attempt.name, *attempt.invocations}):  # or it comes too late
            sent = [each for each in attempt.replies if '"answer"' in each.text and not self.met_a_fault({each.by})]
            self.world.check(not sent, f"{attempt.name} heard {reply}, and was answered")
        if NO_PROXIES in reply:
            self.check_denial(attempt)
        if attempt.heard is None:
            attempt.heard, attempt.heard_at = reply, self.world.now

    # What always holds

    def check_answer(self, attempt: Attempt, answer: str) -> None:
        """Check whose answer it is.

        A Sid is all that an answer says of its proxy, and it answers what that was matched with last: what becomes of
        those that proxies use again, `SidAgain` shows.
        """
        name, sid = named(answer)
        self.world.check(name == attempt.name or sid in self.shared_sids, f"{attempt.name} got {name}'s answer")

    def check_denial(self, attempt: Attempt) -> None:
        """Check that no proxy whose poll was held when the offer waited, and still is, would have served it."""
        now_ms = self.world.now_ms
        # Who holds a poll isn't known here; what died may have left its own behind.
        holders = {each.who for each in self.world.decisions.taken if each.who.startswith(("proxy-", "http-"))}
        if (
            self._has_proxy(attempt)
            or self.met_a_fault({*attempt.invocations, *holders})
            or self.world.dynamodb.throttled
        ):
            return
        table = self.world.dynamodb.tables[WAITING]
        for pool in ("restricted", "unrestricted") if attempt.nat == "unrestricted" else ("unrestricted",):
            for item in table.partition(f"polls#{pool}#0"):
                entered_at, _ = table.before[item["pk"]["S"], item["sk"]["S"]]
                waits = int(item["waits_until"]["N"]) > now_ms + SURE_MS and entered_at < attempt.began_at + TAKEN_S
                if waits and not self._was_matched_lately(item["sk"]["S"].partition("#")[2], before=attempt.began_at):
                    self.world.fail(f"{attempt.name} was denied while {item['sk']['S']} waits")

    def _was_matched_lately(self, sid: str, *, before: float) -> bool:
        """Whether another poll under this Sid was matched: then it has to wait until no answer can come any more."""
        match = self.world.dynamodb.tables[TABLE].items.get((f"proxy#{sid}", "match"))
        return match is not None and int(match["answers_until"]["N"]) > (before - SID_RESTS_S) * 1000 - SURE_MS

    def judge(self, attempt: Attempt) -> None:
        """Check that a client heard by now, later where a proxy has its offer, or that who had it met a fault."""
        late_at = attempt.began_at + HEARS_OF_PROXY_S
        # What took the offer may have died before it told anybody; its client is told that nobody answered.
        is_told = any(TIMED_OUT in reply.text for reply in attempt.replies)
        if attempt.heard is None and self.world.now < late_at and (is_told or self._has_proxy(attempt)):
            self.world.scheduler.at(late_at, partial(self.judge, attempt))
            return
        backed_off_at = attempt.began_at + HEARS_S + BACKS_OFF_S
        if attempt.heard is None and self.world.now < backed_off_at and self._count_throttles(attempt):
            self.world.scheduler.at(backed_off_at, partial(self.judge, attempt))
            return
        is_heard = attempt.heard is not None or attempt.sent == 0
        self.world.check(is_heard or self._was_let_down(attempt), f"{attempt.name} hears nothing in time")

    def _has_proxy(self, attempt: Attempt) -> bool:
        """Whether its offer was given to a poll; one whose caller has hung up tells nobody."""
        items = self.world.dynamodb.tables[TABLE].items.items()
        matched = {item.get("client_id", {}).get("S") for (_, sk), item in items if sk == "match"}
        return bool(attempt.sids or attempt.polls) or attempt.name in matched

    def _was_let_down(self, attempt: Attempt) -> bool:
        """Whether one whom it depended on met a fault: a single throttle is no reason not to hear.

        But in a batch, whose offers are served one after the other here, and side by side where there are threads.
        """
        who = set(attempt.invocations)
        is_late = not attempt.deliveries or attempt.deliveries[0] > attempt.began_at + LATE_S
        for actor, at in self.began.items():
            if is_late and attempt.began_at - BUSY_S < at < attempt.began_at + HEARS_S:
                who.add(actor)
        others = (each.invocations for each in self.attempts.values() if each is not attempt)
        is_alone = self._count_throttles(attempt) == 1 and not any(attempt.invocations & each for each in others)
        kinds = set(OF_CALLS) - ({Kind.THROTTLE} if is_alone else set())
        return self.met_a_fault(who, kinds) or self.met_a_fault({attempt.name})

    def _count_throttles(self, attempt: Attempt) -> int:
        """Count the throttled calls of the invocations that had its offer."""
        taken = self.world.decisions.taken
        return sum(each.who in attempt.invocations and each.kind is Kind.THROTTLE for each in taken)

    def met_a_fault(self, actors: AbstractSet[str], kinds: Collection[Kind] = OF_CALLS) -> bool:
        """Whether a call of one of them went wrong."""
        return any(each.who in actors and each.kind in kinds for each in self.world.decisions.taken)

    def failed(self, by: str, what: str) -> None:
        """Check that a request failed for a fault, or for a mailbox that is gone: that fails one."""
        if not self.met_a_fault({by}):
            self.has_failed += 1
            self.world.check(self.has_failed <= self.may_fail, what)

    # What holds at rest

    def at_rest(self) -> None:
        """Check that nothing is left over, and that what was counted is what was told."""
        self._check_queues()
        self._check_table()
        self._check_counts()
        for attempt in self.attempts.values():
            self._check_replies(attempt)
        calls, messages = self.world.calls_of, self.offers.received
        self.world.check(calls["broker"] <= BROKER_CALLS * (messages + 1), f"the broker made {calls['broker']} calls")
        exchange_over_http = calls["proxy"] + calls["http"]
        self.world.check(
            exchange_over_http <= PROXY_CALLS * (self.requests + 1), f"over HTTP {exchange_over_http} calls were made"
        )

    def _check_queues(self) -> None:
        left = len(self.offers.messages)
        self.world.check(not left, f"{self.offers.name} still has {left} messages")
        names = sorted(queue.name for queue in self.world.sqs.queues.values())
        there = [name for name in names if name.startswith((ANSWER_QUEUE, MAILBOX))]
        self.world.check(not there, f"left over: {there}")
        for letter in self.dead.messages.values():
            says_why = {"sluice-reason", "ErrorMessage"} & letter.attributes.keys()
            self.world.check(
                says_why or "DeadLetterQueueSourceArn" in letter.system, f"a dead letter says not why: {letter.body}"
            )

    def _check_table(self) -> None:
        """Check that nothing stays but the counters, and of what waits nothing whose time is over."""
        waiting = 0
        for (pk, sk), item in self.world.dynamodb.tables[TABLE].items.items():
            stays = "expires_at" in item or pk == "counters" or pk.startswith("document#")
            self.world.check(stays, f"left over in the table: {pk} {sk}")
        for (pk, sk), item in self.world.dynamodb.tables[WAITING].items.items():
            is_due = int(item.get("expires_at", {}).get("N", "0")) < self.world.now - SWEPT_WITHIN_S
            self.world.check(not is_due, f"left over in the table: {pk} {sk}")
            waiting += pk.startswith("polls#")
        failed = {each.who for each in self.world.decisions.taken if each.kind in OF_CALLS}
        polls = sum(who.startswith(("proxy-", "http-")) for who in failed)
        self.world.check(
            waiting <= polls, f"{waiting} polls that are over stay in their pools, and {polls} had a fault"
        )

    def _check_counts(self) -> None:
        """Check that what was told was counted, once where nothing failed, and published where a queue is bound.

        Under faults an event may count twice, and an address that was marked may not count.
        """
        self.world.check(self.stream.is_read, "something in the stream isn't read")
        counted: defaultdict[str, Counts] = defaultdict(Counter)
        for (pk, _), item in self.world.dynamodb.tables[TABLE].items.items():
            if pk.startswith("counters"):
                counted[pk].update(read_row(item))
        told = {"counters": self.counts.counts} | {f"counters#{day}": each for day, each in self.counts.days.items()}
        for partition in counted.keys() | told.keys():
            found, expected = counted[partition], told.get(partition, Counter())
            missing, surplus = expected - found, found - expected
            if self.world.decisions.taken:
                addresses = {family.code for family in FAMILIES.values() if not family.meaning} | {PROXIES.code}
                missing = Counter({name: each for name, each in missing.items() if name.split("|")[0] not in addresses})
                surplus = Counter()
            self.world.check(not missing and not surplus, f"{partition} has {surplus} too much, lacks {missing}")
        expected_ids = self.told_ids if self.is_bound else set()
        self.world.check(
            self.published_ids == expected_ids,
            f"{len(self.published_ids)} of {len(expected_ids)} events were published",
        )

    def _check_replies(self, attempt: Attempt) -> None:
        """Check that a client has one answer for its offer at most, or one denial, and a time-out reply per delivery.

        A delivery doesn't know whether an earlier one has sent its time-out reply. What an invocation that met a fault
        sent may have been sent before: it couldn't know.
        """
        replies = {reply for reply in attempt.replies if not self.met_a_fault({reply.by})}
        answers = [reply for reply in replies if '"answer"' in reply.text]
        denials, time_outs = (sum(text in reply.text for reply in replies) for text in (NO_PROXIES, TIMED_OUT))
        for number, limit in (
            (len(answers), attempt.sent),
            (denials, attempt.sent),
            (time_outs, len(attempt.deliveries)),
        ):
            self.world.check(number <= limit, f"{attempt.name} has {sorted(replies)}")


def named(description: str) -> list[str]:
    """Read the words of a description: the client's name, and in an answer the proxy's Sid."""
    words: list[str] = json.loads(description)["sdp"].splitlines()[0].split()[1:]
    return words


def described(kind: str, *words: str) -> str:
    """Write what `named` reads."""
    sdp = " ".join(["v=0", *words]) + "\na=candidate:1 1 udp 1 192.0.2.1 1 typ host\n"
    return json.dumps({"type": kind, "sdp": sdp})
