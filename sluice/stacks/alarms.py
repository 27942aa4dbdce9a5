"""When an alarm goes off, which capability it is about, and the metrics that alarms and the dashboard have in common.

An alarm of a capability tells nobody: the capability's composite alarm does, once for an outage. Whom, says stack
operations. Each alarm's description ends in where `docs/runbook.md` says what to do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.stacks.functions import METRICS_NAMESPACE
from sluice.stages import staged

AGE, VISIBLE, IN_FLIGHT = (
    "ApproximateAgeOfOldestMessage",
    "ApproximateNumberOfMessagesVisible",
    "ApproximateNumberOfMessagesNotVisible",
)
FIVE_MINUTES = Duration.minutes(5)
SPARK_NAMESPACE = "Sluice/Spark"
RUNBOOK = "docs/runbook.md"
# https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarm-data-queries.html
MOST_METRICS = 10  # of one alarm
DEAD_LETTERS = "DeadLetters"  # how the ids of queues end that hold them, and of their alarms


class Capability(StrEnum):
    """What a site does. Each has a composite alarm, where somebody is told."""

    RENDEZVOUS = "Rendezvous"
    SPLITTING = "Splitting"
    FEDERATION = "Federation"
    PIPELINE = "Pipeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When an alarm goes off: a number for so many periods, one after the other. Its id begins with `name`.

    `heading` is the runbook's, where several alarms have one. An alarm of no capability tells by itself, and that it is
    over only where `ends`: what has come doesn't go because no more comes.
    """

    name: str
    text: str  # what is wrong, and what to do
    metric: cloudwatch.IMetric
    threshold: float
    periods: int = 1
    capability: Capability | None = None
    heading: str = ""
    ends: bool = True


@dataclass(frozen=True, slots=True)
class Watch:
    """A rule with its alarm."""

    rule: Rule
    alarm: cloudwatch.Alarm


class WatchedStack(Stack):
    """A stack with alarms of its own, listed as they were made. `capability` is whose functions it has.

    `watched_by_age` are the ids of those whose queue or stream has an alarm for its oldest message: where they die, it
    goes off, and their dead letters' does.
    """

    capability: ClassVar[Capability | None] = None
    watched_by_age: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, scope: Construct, id_: str, **properties: Any) -> None:
        super().__init__(scope, id_, **properties)
        self.watches: list[Watch] = []


def alarm(stack: WatchedStack, rule: Rule) -> None:
    """Make the alarm of a rule. Without data it is quiet: a site that was just deployed has none."""
    made = cloudwatch.Alarm(
        stack,
        f"{rule.name}Alarm",
        alarm_description=told(rule.text, rule.heading or rule.name),
        metric=rule.metric,
        threshold=rule.threshold,
        evaluation_periods=rule.periods,
        comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
        treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
    )
    stack.watches.append(Watch(rule, made))


def told(text: str, heading: str) -> str:
    """Say what is wrong, and where the runbook goes on."""
    end = "" if text.endswith("?") else "."
    return f"{text}{end} {RUNBOOK}#{heading.lower()}"


def errors_rules(stack: WatchedStack, capability: Capability, *, least: int) -> list[Rule]:
    """Watch for functions of a stack that die or run out of time: what of a batch fails isn't counted there.

    AWS charges for each function, so it is for those that no other alarm is about.
    """
    functions = [
        child
        for child in stack.node.children
        if isinstance(child, lambda_.Function) and child.node.id not in stack.watched_by_age
    ]
    rules = []
    for start in range(0, len(functions), MOST_METRICS):
        metrics = {
            f"errors{place}": each.metric_errors(period=FIVE_MINUTES)
            for place, each in enumerate(functions[start : start + MOST_METRICS])
        }
        errors = cloudwatch.MathExpression(
            expression="SUM(FILL(METRICS(), 0))", using_metrics=metrics, label="errors", period=FIVE_MINUTES
        )
        text = f"Functions of {capability.lower()} die: their logs say of what, `sluice status` what waits"
        name = f"{capability}Errors{start or ''}"
        rules.append(
            Rule(
                name=name, text=text, metric=errors, threshold=least, periods=2, capability=capability, heading="Errors"
            )
        )
    return rules


def dead_letters_rule(queue: sqs.IQueue, name: str, words: str, *, least: int) -> Rule:
    """Watch for letters that come. How many there are would keep the alarm on, and the next ones quiet.

    SQS counts what functions bury as sent, and what it moves itself as nothing:
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-available-cloudwatch-metrics.html
    So it is by how many there are more than five minutes before. An empty queue that nobody uses says nothing: zero.
    """
    more = cloudwatch.MathExpression(
        expression="DIFF(FILL(letters, 0))",
        using_metrics={"letters": of_queue(queue, VISIBLE)},
        label="letters that came",
        period=FIVE_MINUTES,
    )
    text = f"There are new {words}: `sluice dlq list` says of what, `sluice dlq redrive` puts them back"
    return Rule(name=name, text=text, metric=more, threshold=least, heading=DEAD_LETTERS, ends=False)


def all_functions(name: str, statistic: str) -> cloudwatch.Metric:
    """Name a metric that Lambda has of all functions of the account and region together."""
    return cloudwatch.Metric(namespace="AWS/Lambda", metric_name=name, statistic=statistic, period=FIVE_MINUTES)


def composite(stack: Stack, capability: Capability, alarms: Sequence[cloudwatch.IAlarm]) -> cloudwatch.CompositeAlarm:
    """Make the alarm that goes off when any of these does. They are named, as ARNs would leave room for fewer."""
    return cloudwatch.CompositeAlarm(
        stack,
        f"{capability}Outage",
        composite_alarm_name=f"{stack.stack_name}-{capability}Outage",  # CDK's would begin with no stage
        alarm_description=told(
            f"{capability}: something is wrong, the console lists the alarms that say what", capability
        ),
        alarm_rule=cloudwatch.AlarmRule.from_string(" OR ".join(f'ALARM("{each.alarm_name}")' for each in alarms)),
    )


def ours(
    name: str,
    service: str,
    *,
    stage: str | None,
    statistic: str = "Sum",
    dimensions: Mapping[str, str] | None = None,
    label: str | None = None,
) -> cloudwatch.Metric:
    """Name a metric that a function publishes, at a stage or none."""
    return cloudwatch.Metric(
        namespace=staged(METRICS_NAMESPACE, stage),
        metric_name=name,
        dimensions_map={"service": service, **(dimensions or {})},
        statistic=statistic,
        period=FIVE_MINUTES,
        label=label,
    )


def of_queue(
    queue: sqs.IQueue | str, name: str, *, period: Duration = FIVE_MINUTES, label: str | None = None
) -> cloudwatch.Metric:
    """Name a metric of SQS's; by the queue's name, as an adopted queue's own metrics would name its account."""
    return cloudwatch.Metric(
        namespace="AWS/SQS",
        metric_name=name,
        dimensions_map={"QueueName": queue if isinstance(queue, str) else queue.queue_name},
        statistic="Maximum",
        period=period,
        label=label,
    )
