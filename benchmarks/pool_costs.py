"""What a month of a site's rendezvous costs, from what a run counted: units a step, and prices."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.pool_population import Manner, Outcome, Step
from sluice.rendezvous.protocol.matching import Pool

# On demand, us-east-1, on 23 November 2026: aws.amazon.com/lambda/pricing, /dynamodb/pricing/on-demand, /sqs/pricing,
# /cloudwatch/pricing. A million of each but for GB-seconds and gigabytes. Free tiers aren't counted.
PRICES = {
    "Lambda requests": 0.20,
    "Lambda GB-seconds": 13.3334,  # arm64
    "DynamoDB writes": 0.625,
    "DynamoDB reads": 0.125,
    "SQS requests": 0.40,
    "CloudWatch logs": 500_000.0,  # gigabytes
}
MONTH_S = 30.4 * 86_400
PROXY_GB, BROKER_GB = 0.25, 0.5
QUICK_S = 0.015  # a warm invocation that asks the table once or twice
BROKER_S = 0.15
LOGGED_KB = 0.6  # an invocation: START, END, REPORT, and its metrics
# An event's own request, and its part of a batch's at the exchange and at the counters: as the guide has it.
EVENT_SQS = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """What a step takes of AWS: units of DynamoDB, requests of SQS, invocations and GB-seconds of Lambda.

    What a poll is held for comes beside; `looks` are eventually consistent queries of the waiting offers, of which
    a poll of an unrestricted proxy makes two, and `sure_looks` consistent ones.
    """

    writes: float = 0
    reads: float = 0
    looks: float = 0
    sure_looks: float = 0
    sqs: float = 0
    invocations: float = 0
    gb_s: float = 0


_POLL_GB_S = PROXY_GB * QUICK_S
# As sluice.aws.rendezvous asks for it. An offer that waits has up to 2 KB, all else up to 1 KB; a condition that fails
# is a write as well. What is deleted by expiry is free.
UNITS: Mapping[Step, Units] = {
    Step.DEFERRED: Units(looks=1, sqs=EVENT_SQS, invocations=1, gb_s=_POLL_GB_S),
    Step.EARLY: Units(looks=1, sqs=EVENT_SQS, invocations=1, gb_s=_POLL_GB_S),
    # The offer taken (2) and the match.
    Step.TAKEN: Units(writes=3, looks=1, sqs=EVENT_SQS, invocations=1, gb_s=_POLL_GB_S),
    # Entered, closed, left; its mailbox is received from.
    Step.HELD_IDLE: Units(writes=3, sure_looks=1, sqs=1 + EVENT_SQS, invocations=1, gb_s=_POLL_GB_S),
    # Entered, and left by both.
    Step.HELD_MATCHED: Units(writes=3, sure_looks=1, sqs=1 + EVENT_SQS, invocations=1, gb_s=_POLL_GB_S),
    # Beside what every offer takes: the match, and the letter.
    Step.OFFER_MATCHED: Units(writes=1, sqs=1),
    # Waits (2); the pool is asked again.
    Step.OFFER_WAITED: Units(writes=2, reads=1),
    Step.OFFER_LEFT: Units(writes=2),
    # Its match is read, the offer updated, the answer sent; its event and the offer's.
    Step.ANSWER: Units(writes=1, reads=0.5, sqs=1 + 2 * (EVENT_SQS - 0.5), invocations=1, gb_s=_POLL_GB_S),
}
# Its record written and deleted; the pool asked. Sent, looked up and received by the client, received and deleted by
# the trigger; its queue made, the reply that nobody answered sent, the queue deleted.
OFFER = Units(writes=2, reads=1, sqs=3 + 2 + 3, invocations=1, gb_s=BROKER_GB * BROKER_S)
# Of the counts and turns; a read is of two queries.
PACE: Mapping[str, Units] = {
    "add": Units(writes=1),
    "lately": Units(reads=2 * 0.5),
    "take_turn": Units(writes=1),
}


def month(outcome: Outcome, *, days: float, calls: Mapping[str, float]) -> dict[str, float]:
    """Say what a month costs of which so many days were counted, in dollars, by what is paid for."""
    used = dict.fromkeys(PRICES, 0.0)
    for (step, pool, _), times in outcome.steps.items():
        _add(used, UNITS[step], times, pool=pool)
    _add(used, OFFER, outcome.offers, pool=Pool.UNRESTRICTED)
    for call, times in calls.items():
        _add(used, PACE[call], times, pool=Pool.UNRESTRICTED)
    used["Lambda GB-seconds"] += outcome.held_ms / 1000 * PROXY_GB
    return {name: number * PRICES[name] / 1e6 * MONTH_S / (days * 86_400) for name, number in used.items()}


def early_part(outcome: Outcome, *, days: float) -> float:
    """Say what a month of those polls costs that come before their turn, in dollars: nothing paces them."""
    early = Outcome()
    for key, times in outcome.steps.items():
        if key[0] is Step.EARLY and key[2] is not Manner.OBEYING:
            early.steps[key] = times
    return sum(month(early, days=days, calls={}).values())


def _add(used: dict[str, float], units: Units, times: float, *, pool: Pool) -> None:
    partitions = 2 if pool is Pool.UNRESTRICTED else 1
    used["Lambda requests"] += units.invocations * times
    used["Lambda GB-seconds"] += units.gb_s * times
    used["DynamoDB writes"] += units.writes * times
    used["DynamoDB reads"] += (units.reads + (units.looks / 2 + units.sure_looks) * partitions) * times
    used["SQS requests"] += units.sqs * times
    used["CloudWatch logs"] += units.invocations * times * LOGGED_KB / 1e6
