"""What AWS says of the stages themselves: functions' Python and cold start, alarms, dead letters."""

import re
from collections.abc import Iterator
from datetime import datetime

from sluice import lambda_python
from sluice.aws.operator.control_client import SPLITTING
from sluice.aws.operator.function_logs import FunctionLogs
from sluice.aws.splitting.queues import SplitQueues
from sluice.smoke.runs import NotSo
from sluice.smoke.sites import SmokeSite, looks
from sluice.smoke.stages import Stages

RUNTIME = f"python{lambda_python.VERSION}"
ALARM = "ALARM"
DEAD_LETTERS = "DeadLetters"  # in a queue's name
COLD_MOST_MS = 3_000.0
LOGGED_WITHIN_S = 60.0
# https://docs.aws.amazon.com/lambda/latest/dg/runtimes-update.html
STARTED = re.compile(r"INIT_START Runtime Version: python:(\S+)")
INIT = re.compile(r"Init Duration: ([\d.]+) ms")
EMPTY_WITHIN_S = 90.0  # SQS's counts are a minute late


def functions(stages: Stages) -> str:
    """All run on the Python that we test with; one that logs its start says which and how long it took."""
    found = [each for site in stages.both for each in site.contents.functions()]
    others = {each["FunctionName"]: each["Runtime"] for each in found if each["Runtime"] != RUNTIME}
    if others or not found:
        raise NotSo(f"of {len(found)} functions these don't run {RUNTIME}: {others}")
    if stages.cloud:
        return f"{len(found)} with {RUNTIME}; how they start AWS alone shows"
    name = stages.here.output(*SPLITTING)
    for _ in looks(LOGGED_WITHIN_S, f"{name} has logged its start"):
        logged = "\n".join(_lines(stages.here, name, stages.since))
        version, took = STARTED.search(logged), INIT.search(logged)
        if version and took:
            break
    if not version or not version[1].startswith(lambda_python.VERSION):
        raise NotSo(f"{name} runs Python {version and version[1]}")
    if took is None or float(took[1]) > COLD_MOST_MS:
        raise NotSo(f"{name} took {took and took[1]} ms to start, more than {COLD_MOST_MS:g}")
    return f"{len(found)} with {RUNTIME}; {name} is {version[1]}, and took {took[1]} ms to start"


def _lines(site: SmokeSite, function: str, since: datetime) -> Iterator[str]:
    [group] = [
        each["LoggingConfig"]["LogGroup"] for each in site.contents.functions() if each["FunctionName"] == function
    ]
    for word in ("INIT_START", "Init Duration"):
        logs = FunctionLogs(site.connection.client("logs"), group, int(since.timestamp() * 1000))
        yield from (line.text for line in logs.new_lines(word, now_ms=int(since.timestamp() * 1000)))


def alarms(stages: Stages) -> str:
    """None rings, after everything that a site does every day."""
    found = [each for site in stages.both for each in site.contents.alarms()]
    ringing = [f"{each['AlarmName']}: {each.get('StateReason', '')}" for each in found if each["StateValue"] == ALARM]
    if ringing:
        raise NotSo("; ".join(ringing))
    return f"{len(found)} alarms, none rings"


def dead_letters(stages: Stages) -> str:
    """No queue of dead letters has any."""
    queues = [
        (SplitQueues(site.connection.client("sqs"), url), name)
        for site in stages.both
        for name, url in site.contents.queues().items()
        if DEAD_LETTERS in name
    ]
    for _ in looks(EMPTY_WITHIN_S, "queues of dead letters are empty"):
        if not any(each.count(name) for each, name in queues):
            break
    return f"{len(queues)} queues, all empty"
