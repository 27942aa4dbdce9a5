"""What a month of a site's rendezvous costs, from what a run counted: units a step, and prices."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.pool_population import Manner, Outcome, Step
from benchmarks.prices import MONTH_S, Used, price_list
from sluice.rendezvous.protocol.matching import HOLD_MS, Pool

# What is paid for, as `month` says it, by the prices' names.
PAID_FOR = {
    "Lambda requests": "lambda_calls",
    "Lambda GB-seconds": "lambda_gb_s",
    "DynamoDB writes": "dynamodb_writes",
    "DynamoDB reads": "dynamodb_reads",
    "SQS requests": "sqs_standard",
    "CloudWatch logs": "logs_gb",
}
PROXY_GB, BROKER_GB = 0.25, 0.5
QUICK_S = 0.015  # a warm invocation that asks the table once or twice
DELETE_S = 0.007  # more, where the proxy function deletes the message of the offer that was answered
BROKER_S = 0.15
METRICS_KB = 0.22  # a line with one metric, of a call that isn't one of many alike; of calls Lambda itself logs nothing
# To tell of a poll, in write units: an item of its own, or of one that is sent away a part of what its environment
# tells of in twenty seconds: 150 bytes.
TOLD_TOGETHER = 0.15
# To count: in each window, and of each shard of the table's stream, a row and its day's for every country that was told
# of, and a mark for each address in a day. Of 200 countries the second has half as many as the first, and so on. A
# table on demand begins with four shards, over which offers are spread; polls are told of in one.
WINDOW_S, SHARDS, COUNTRIES, MARKS = 120, 4, 200, 1 / 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """What a step takes of AWS: units of DynamoDB, requests of SQS, invocations and GB-seconds of Lambda.

    What a poll is held for comes beside; `looks` are eventually consistent queries of the waiting offers, of which
    a poll of an unrestricted proxy makes two, and `sure_looks` consistent ones. Who `is_sent_away` is counted with
    others, and a seventh of them are the first of their address in a day.
    """

    writes: float = 0
    reads: float = 0
    looks: float = 0
    sure_looks: float = 0
    sqs: float = 0
    invocations: float = 0
    gb_s: float = 0
    is_sent_away: bool = False


_POLL_GB_S = PROXY_GB * QUICK_S
# As sluice.aws.rendezvous asks for it. No item has more than 1 KB; a condition that fails
# is a write as well. What is deleted by expiry is free.
UNITS: Mapping[Step, Units] = {
    Step.DEFERRED: Units(looks=1, invocations=1, gb_s=_POLL_GB_S, is_sent_away=True),
    Step.EARLY: Units(looks=1, invocations=1, gb_s=_POLL_GB_S, is_sent_away=True),
    # The offer taken and the match.
    Step.TAKEN: Units(writes=2 + TOLD_TOGETHER + MARKS, looks=1, invocations=1, gb_s=_POLL_GB_S),
    # Entered, closed, left; its mailbox is received from.
    Step.HELD_IDLE: Units(writes=3 + TOLD_TOGETHER + MARKS, sure_looks=1, sqs=1, invocations=1, gb_s=_POLL_GB_S),
    # Entered, and left by both.
    Step.HELD_MATCHED: Units(writes=3 + TOLD_TOGETHER + MARKS, sure_looks=1, sqs=1, invocations=1, gb_s=_POLL_GB_S),
    # Beside what every offer takes: the match, and the letter.
    Step.OFFER_MATCHED: Units(writes=1, sqs=1),
    # Waits; the pool is asked again.
    Step.OFFER_WAITED: Units(writes=1, reads=1),
    Step.OFFER_LEFT: Units(writes=1),
    # Its match is read, the offer updated, the answer sent, its offer deleted; that write tells of both.
    Step.ANSWER: Units(writes=1, reads=0.5, sqs=1, invocations=1, gb_s=_POLL_GB_S + PROXY_GB * DELETE_S),
}
# Its record written and deleted; the pool asked. Sent, looked up and received by the client, received and deleted by
# the trigger; its queue made, the reply that nobody answered sent, the queue deleted.
OFFER = Units(writes=2, reads=1, sqs=3 + 2 + 3, invocations=1, gb_s=BROKER_GB * BROKER_S)
# Of the counts and turns; a read is of two queries.
PACE: Mapping[str, Units] = {
    "add": Units(writes=1),
    "lately": Units(reads=2 * 0.5),
    "start_cooldown": Units(writes=2),  # with the sweeper's deletion
    "has_cooldown": Units(reads=0.5),
}


def month(outcome: Outcome, *, days: float, calls: Mapping[str, float]) -> dict[str, float]:
    """Say what a month costs of which so many days were counted, in dollars, by what is paid for."""
    used = dict.fromkeys(PAID_FOR, 0.0)
    for (step, pool, _), times in outcome.steps.items():
        _add(used, UNITS[step], times, pool=pool)
    _add(used, OFFER, outcome.offers, pool=Pool.UNRESTRICTED)
    for call, times in calls.items():
        _add(used, PACE[call], times, pool=Pool.UNRESTRICTED)
    used["Lambda GB-seconds"] += outcome.held_ms / 1000 * PROXY_GB
    used["DynamoDB writes"] += _counting(outcome, days=days)
    prices = price_list().prices
    return {name: number * prices[PAID_FOR[name]].each * MONTH_S / (days * 86_400) for name, number in used.items()}


def _counting(outcome: Outcome, *, days: float) -> float:
    """Say how many writes it takes to count all events of that time."""
    windows = days * 86_400 / WINDOW_S
    answers = sum(times for (step, _, _), times in outcome.steps.items() if step is Step.ANSWER)
    polls = sum(
        times for (step, _, _), times in outcome.steps.items() if UNITS[step].invocations and step is not Step.ANSWER
    )
    rows = _rows(polls / windows) + SHARDS * sum(_rows(each / windows / SHARDS) for each in (answers, outcome.offers))
    return 2 * rows * windows


def _rows(events: float) -> float:
    """Say of how many countries so many events are, on the average."""
    parts = sum(1 / place for place in range(1, COUNTRIES + 1))
    return sum(1.0 - math.pow(1 - 1 / place / parts, events) for place in range(1, COUNTRIES + 1))


def early_usd(polls_a_second: float) -> float:
    """Say what a month of polls costs that come before their turn, in dollars: nothing that a site says paces them."""
    early = Outcome()
    early.steps[Step.EARLY, Pool.UNRESTRICTED, Manner.OLDER] = round(polls_a_second * 86_400)
    return sum(month(early, days=1, calls={}).values())


def held(*, memory_mb: int) -> Used:
    """Say what a poll takes that is held for nothing, of a proxy that any client can use."""
    used = dict.fromkeys(PAID_FOR, 0.0)
    _add(used, UNITS[Step.HELD_IDLE], 1, pool=Pool.UNRESTRICTED)
    return {PAID_FOR[name]: number for name, number in used.items()} | {
        "lambda_gb_s": (HOLD_MS / 1000 + QUICK_S) * memory_mb / 1024
    }


def _add(used: dict[str, float], units: Units, times: float, *, pool: Pool) -> None:
    partitions = len(Pool) if pool is Pool.UNRESTRICTED else 1
    used["Lambda requests"] += units.invocations * times
    used["Lambda GB-seconds"] += units.gb_s * times
    told = TOLD_TOGETHER + MARKS if units.is_sent_away else 0
    used["DynamoDB writes"] += (units.writes + told) * times
    used["DynamoDB reads"] += (units.reads + (units.looks / 2 + units.sure_looks) * partitions) * times
    used["SQS requests"] += units.sqs * times
    used["CloudWatch logs"] += (0 if units.is_sent_away else METRICS_KB * units.invocations) * times / 1e6
