"""The rendezvous with one thing in its way, and no other fault: what happens then is known, and whether it may."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tests.simulation.kernel.calls import THROTTLED
from tests.simulation.kernel.faults import CALM
from tests.simulation.kernel.world import World
from tests.simulation.models.dynamodb import Item
from tests.simulation.models.errors import ServiceError
from tests.simulation.scenarios.rendezvous import Rendezvous
from tests.simulation.scenarios.rendezvous_callers import Manner, Method
from tests.simulation.scenarios.rendezvous_watch import HEARS_OF_PROXY_S, HEARS_S, NO_PROXIES, TABLE, WAITING

LEFTOVERS = 50
VOLUNTEERS = 10
ATTEMPTS = 3  # of botocore's for a call
HEARD_S = 7.0  # after an offer: six seconds, and what a call takes that is made again
NAT = "unrestricted"


class Alone(Rendezvous):
    """The same deployment and the same checks, and nobody there but those of `act`."""

    faults = CALM
    clients = late_clients = volunteers = strays = 0
    held_min = (4,)
    faulty_s, settles_s = 60.0, 60.0

    def build(self) -> None:
        """Deploy, and let them act."""
        super().build()
        self.world.pace = 1.0
        self.world.spawn("act", self.act)

    def act(self) -> None:
        """Do what the scenario is about."""
        raise NotImplementedError

    def at_rest(self) -> None:
        """Check nothing more than what happened: sweeps come later."""

    def offer(self, name: str, *, nat: str = NAT, reads_after_s: float = 0.0) -> None:
        """Have a client over SQS come now, and read its queue no earlier than that."""
        client = partial(self.callers.client, name, nat, Method.SQS, reads_after_s=reads_after_s)
        self.world.spawn(name, client)

    def volunteer(self, name: str, *, pause_s: float, manner: Manner = Manner.WELL) -> None:
        """Have a volunteer come now."""
        self.world.spawn(name, partial(self.callers.volunteer, name, NAT, manner, pause_s=pause_s))

    def kill(self, function: str) -> None:
        """Have all environments of a function die that are at work."""
        for actor in list(self.world.scheduler._alive):
            if actor.name.startswith(f"{function}-"):
                self.world.scheduler.kill(actor)


class Leftovers(Alone):
    """Fifty polls are held when the environments that hold them are gone: nothing takes them out of their pool."""

    held_min = (LEFTOVERS + 1,)

    def act(self) -> None:
        """Kill them; when their time is over a proxy polls, and a client comes."""
        for number in range(LEFTOVERS):
            self.callers.hang_up(f"dead-{number}", NAT)
        self.world.sleep(5)
        self.kill("proxy")
        self.world.sleep(10)
        self.volunteer("alive", pause_s=1.0)
        self.world.sleep(2)
        self.offer("client", nat="unknown")

    def at_rest(self) -> None:
        """Check that the client has its answer."""
        heard = self.watch.attempts["client"].heard or ""
        self.world.check('"answer"' in heard, f"a proxy waits behind leftovers, and its client heard {heard}")


class SlowLine(Alone):
    """Clients read their queues late, and their proxies answer soon: some wait, some come a bit later."""

    faulty_s = settles_s = 200.0
    after_s = (1, 3, 6, 10, 15, 24)  # after the offer
    held_min = (2,)

    def act(self) -> None:
        """Have two clients come for each time: one whose proxy waits, and one whose proxy comes half a second later."""
        self.callers = replace(self.callers, thinks_s=(0.5,))
        for after_s in self.after_s:
            for name in ("held", "queued"):
                serve = partial(self.callers.serve, f"{name}-{after_s}", NAT, Manner.WELL)
                self.world.spawn(f"proxy-of-{name}-{after_s}", serve, after_s=0.0 if name == "held" else 2.5)
                self.world.sleep(2)
                self.offer(f"{name}-{after_s}", reads_after_s=after_s)
                self.world.sleep(12)

    def at_rest(self) -> None:
        """Check that each client has its answer."""
        heard = {name: attempt.heard for name, attempt in self.watch.attempts.items()}
        denied = {name: reply for name, reply in heard.items() if '"answer"' not in (reply or "")}
        self.world.check(len(heard) == 2 * len(self.after_s), f"only {len(heard)} clients came")
        self.world.check(not denied, f"clients who read late heard {denied}")


class NobodyTakesIt(Alone):
    """A client comes where there is no proxy."""

    def act(self) -> None:
        """Come."""
        self.offer("client")

    def at_rest(self) -> None:
        """Check that it heard soon, and what."""
        attempt = self.watch.attempts["client"]
        waited_s = attempt.heard_at - attempt.began_at
        self.world.check(NO_PROXIES in (attempt.heard or "") and waited_s < HEARD_S, f"{attempt.heard} in {waited_s} s")


class WritesAgain:
    """DynamoDB, of which a poll's entry is written three times, in six seconds: no answer came."""

    def __init__(self, world: World) -> None:
        self.world, self.is_over = world, False

    def __getattr__(self, operation: str) -> Any:
        return getattr(self.world.dynamodb, operation)

    def put_item(self, **asked: Any) -> Any:
        """Write an item."""
        if not self.is_over and asked["Item"]["pk"]["S"].startswith("polls#"):
            self.is_over = True
            for seconds in (5, 1):
                self.world.dynamodb.put_item(**asked)
                self.world.sleep(seconds)
        return self.world.dynamodb.put_item(**asked)


class WrittenAgain(Alone):
    """A client comes as a poll's entry has been written, another when it was written again and the first has gone."""

    def act(self) -> None:
        """Come."""
        written = WritesAgain(self.world)
        self.world.models["dynamodb"] = written
        self.volunteer("volunteer", pause_s=1.0)
        while not written.is_over:
            self.world.sleep(0.05)
        self.offer("first")
        self.world.sleep(5)
        self.offer("second")


class FewHeld(Alone):
    """Ten volunteers come and go as they are told, and eight clients come at once after a time without any."""

    def act(self) -> None:
        """Come."""
        for number in range(VOLUNTEERS):
            self.volunteer(f"volunteer-{number}", pause_s=20.0)
        self.world.sleep(5)
        for number in range(VOLUNTEERS - 2):
            self.offer(f"client-{number}", nat="unknown")

    def at_rest(self) -> None:
        """Check that each was given one of the volunteers, who were all idle."""
        denied = [name for name, attempt in self.watch.attempts.items() if NO_PROXIES in (attempt.heard or "")]
        self.world.check(not denied, f"ten proxies are idle, and {len(denied)} of eight clients are denied")


class Throttled(Alone):
    """A partition of the table refuses a broker, for eight seconds."""

    def act(self) -> None:
        """Have a client come as that begins."""
        self.volunteer("volunteer", pause_s=1.0)
        self.world.sleep(2)
        self.world.dynamodb.throttled[WAITING, f"polls#{NAT}#0"] = self.world.now + 8
        self.offer("client", nat="unknown")


class ThrottlesOne:
    """A service that refuses a broker one call, and botocore's attempts at it; whoever counts says which."""

    def __init__(self, world: World, service: str, may: Callable[[str], bool]) -> None:
        self.world, self.service, self.may = world, service, may

    def __getattr__(self, operation: str) -> Any:
        def call(**asked: Any) -> Any:
            if self.world.scheduler.current.name.startswith("broker-") and not self.may(operation):
                raise ServiceError(THROTTLED[self.service], "Rate exceeded", status=400)
            return getattr(getattr(self.world, self.service), operation)(**asked)

        return call


class ThrottledInTurn(Alone):
    """The broker's calls are refused one after the other, each for another client: with a proxy and without."""

    faulty_s = 600.0
    in_turn = 9  # more than it makes

    def act(self) -> None:
        """Have two clients come for each call."""
        for service in ("dynamodb", "sqs"):
            self.world.models[service] = ThrottlesOne(self.world, service, self.may)
        for number in range(self.in_turn):
            for name in ("first", "second"):
                self.calls, self.attempts, self.refused, self.call = 0, 0, "", number
                if name == "first":
                    self.world.spawn(f"volunteer-{number}", partial(self.callers.poll, f"sid-{number}", NAT))
                    self.world.sleep(2)
                self.offer(f"{name}-{number}")
                self.world.sleep(20)

    def may(self, operation: str) -> bool:
        """Say whether the broker's call is done."""
        if operation != self.refused:
            self.calls += 1
        if self.calls == self.call + 1 and self.attempts < ATTEMPTS:
            self.refused = operation
            self.attempts += 1
            return False
        self.refused = ""
        return True

    def at_rest(self) -> None:
        """Check that each has heard in time."""
        for name, attempt in self.watch.attempts.items():
            waited_s = attempt.heard_at - attempt.began_at
            within_s = HEARS_OF_PROXY_S if attempt.sids else HEARD_S
            self.world.check(attempt.heard is not None and waited_s < within_s, f"{name} waited for {waited_s:.2f} s")


class Dies(Alone):
    """A function dies as soon as something stands in the table, before it does anything else."""

    function: str
    manner = Manner.WELL

    def act(self) -> None:
        """Have a client come, and watch its offer."""
        self.watch.may_fail = 1  # the request whose function dies
        self.volunteer("volunteer", pause_s=1.0, manner=self.manner)
        self.world.sleep(2)
        self.offer("client")
        while not any(self.stands(item) for item in self.world.dynamodb.tables[TABLE].items.values()):
            self.world.sleep(0.0005)
        self.kill(self.function)

    def stands(self, item: Item) -> bool:
        """Whether it is this that stands there."""
        raise NotImplementedError


class DiesMatched(Dies):
    """A broker dies when it has a proxy for the offer, before that hears of it."""

    function = "broker"

    def stands(self, item: Item) -> bool:
        """Whether it is a match."""
        return "reply_to" in item


class DiesAnswered(Dies):
    """A proxy function dies when it has taken the answer, before the client has it."""

    function = "proxy"

    def stands(self, item: Item) -> bool:
        """Whether it is an offer that was answered."""
        return item.get("state") == {"S": "answered"}


class Conflicts(Alone):
    """Claims meet other writes now and then, and there are more proxies than clients."""

    faulty_s = 120.0

    def act(self) -> None:
        """Have clients come."""
        for number in range(3):
            self.volunteer(f"volunteer-{number}", pause_s=0.1)
        for number in range(20):
            self.world.sleep(5)
            self.offer(f"client-{number}")


class DeliveredAgain(Alone):
    """SQS delivers most messages more than once, and there is no proxy."""

    def act(self) -> None:
        """Have clients come."""
        for number in range(5):
            self.offer(f"client-{number}")

    def at_rest(self) -> None:
        """Check that each was told so once."""
        often = max(len(attempt.replies) for attempt in self.watch.attempts.values())
        self.world.check(often == 1, f"a client has {often} replies to one offer")


class DeliveredAtOnce(Alone):
    """SQS delivers most messages more than once, some at the same time, and there is one proxy."""

    def act(self) -> None:
        """Have clients come, one after the other."""
        self.volunteer("volunteer", pause_s=0.5)
        for number in range(5):
            self.world.sleep(10)
            self.offer(f"client-{number}")

    def at_rest(self) -> None:
        """Check that nobody was denied who had the proxy."""
        both = [name for name, each in self.watch.attempts.items() if each.polls and NO_PROXIES in str(each.replies)]
        self.world.check(not both, f"{both} were given a proxy and denied")


class NewAnswerQueue(Alone):
    """A client's queue isn't found for a second after it was made, and there is no proxy."""

    def act(self) -> None:
        """Have a client come."""
        self.offer("client")


class NewMailbox(Alone):
    """A mailbox isn't found for a second after it was made."""

    def act(self) -> None:
        """Have volunteers poll again and again, and a client come when they have done so for a while."""
        self.callers = replace(self.callers, thinks_s=(0.2,))
        for number in range(2):
            self.volunteer(f"volunteer-{number}", pause_s=2.0)
        self.world.sleep(30)
        self.offer("client")

    def at_rest(self) -> None:
        """Check that the client has its answer."""
        heard = self.watch.attempts["client"].heard or ""
        self.world.check('"answer"' in heard, f"two proxies poll, and a client heard {heard}")


class SidAgain(Alone):
    """A proxy polls again under the Sid of an offer that it still has in hand."""

    def act(self) -> None:
        """Let it answer the first offer when the second has come."""
        self.offer("first")
        first = self.callers.poll("sid", NAT)
        assert first == "first"
        self.world.sleep(HEARS_S)
        self.offer("second")
        self.callers.poll("sid", NAT)
        self.callers.answer("sid", first)
