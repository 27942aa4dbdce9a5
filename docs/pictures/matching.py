"""A rendezvous over SQS: from a client's offer and a volunteer's poll to the connection between the two."""

from docs.pictures.sequence import Actor, Step
from docs.pictures.sequence import drawn as sequence_of
from sluice.pictures.svg import Colour
from sluice.rendezvous.mailbox import PREFIX
from sluice.rendezvous.protocol.matching import HOLD_MS, TIME_OUT_REPLY_MS
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX

CLIENT, VOLUNTEER = "client", "volunteer's proxy"
OFFERS, BROKER, ANSWERS = "offers queue", "broker λ", "answer queue"
MAILBOX, PROXY = "mailbox", "proxy λ"

ACTORS = (
    Actor(name=CLIENT, beside="SQS only", colour=Colour.ONE),
    Actor(name=OFFERS, beside="SQS"),
    Actor(name=BROKER, beside="matches", colour=Colour.GOOD),
    Actor(name=ANSWERS, beside=f"{ANSWER_QUEUE_PREFIX}…"),
    Actor(name=MAILBOX, beside=f"{PREFIX}…"),
    Actor(name=PROXY, beside="HTTP", colour=Colour.GOOD),
    Actor(name=VOLUNTEER, beside="Snowflake", colour=Colour.THREE),
)


def steps() -> list[Step]:
    """Tell the steps of an offer that comes while a poll is held."""
    time_out, hold = f"{TIME_OUT_REPLY_MS / 1000:g} s", f"{HOLD_MS / 1000:g} s"
    return [
        Step(source=VOLUNTEER, dest=PROXY, lines=f"1 polls: held {hold} at most"),
        Step(source=CLIENT, dest=OFFERS, lines="2 offer"),
        Step(source=OFFERS, dest=BROKER, lines="3 a batch"),
        Step(source=BROKER, dest=ANSWERS, lines=f"4 makes it; “timed out” in {time_out}", colour=Colour.SLOW),
        Step(source=BROKER, dest=MAILBOX, lines="5 a letter: the offer"),
        Step(source=MAILBOX, dest=PROXY, lines="6 received"),
        Step(source=PROXY, dest=VOLUNTEER, lines="7 the offer"),
        Step(source=VOLUNTEER, dest=PROXY, lines="8 answer"),
        Step(source=PROXY, dest=ANSWERS, lines="9 answer"),
        Step(source=ANSWERS, dest=CLIENT, lines="10 reads once: the answer, or the time-out"),
        Step(
            source=CLIENT,
            dest=VOLUNTEER,
            lines="11 WebRTC: from here on without Sluice",
            colour=Colour.GOOD,
            both_ways=True,
        ),
    ]


def drawn() -> str:
    """Draw it."""
    return sequence_of(ACTORS, steps(), title="A rendezvous: from the offer to the connection")
