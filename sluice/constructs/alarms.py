"""Alarm rules, and the metrics that alarms and the dashboard share.

A capability's single alarms have no actions: the capability's composite alarm notifies, once per outage. Stack
operations adds the actions. Each alarm's description ends in the heading of `docs/runbook.md` that explains what to do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.stages import add_stage_prefix

AGE, VISIBLE, IN_FLIGHT = (
    "ApproximateAgeOfOldestMessage",
    "ApproximateNumberOfMessagesVisible",
    "ApproximateNumberOfMessagesNotVisible",
)
FIVE_MINUTES = Duration.minutes(5)
METRICS_NAMESPACE = "Sluice"
SPARK_NAMESPACE = "Sluice/Spark"
RUNBOOK = "docs/runbook.md"
# CloudWatch's limit of metrics: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarm-data-queries.html
MAX_METRICS = 10  # CloudWatch allows ten metrics per alarm.
DEAD_LETTERS = "DeadLetters"  # Construct ids of dead-letter queues and their alarms end in this name.


class Capability(StrEnum):
    """A capability of a site. If alarms notify a topic, each capability has a composite alarm."""

    RENDEZVOUS = "Rendezvous"
    SPLITTING = "Splitting"
    FEDERATION = "Federation"
    PIPELINE = "Pipeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRule:
    """The condition of an alarm: `metric` reaches `threshold` in `periods` consecutive periods.

    The alarm's id starts with `name`. `heading` is the runbook's heading if several alarms share one. An alarm without
    a capability notifies by itself. It notifies of its end only if `notifies_end` is set, so not for dead letters,
    which stay.
    """

    name: str
    text: str  # The alarm's description names the problem and the next step.
    metric: cloudwatch.IMetric
    threshold: float
    periods: int = 1
    capability: Capability | None = None
    heading: str = ""
    notifies_end: bool = True


@dataclass(frozen=True, slots=True)
class CreatedAlarm:
    """An alarm rule, and the alarm that was created from the rule."""

    rule: AlarmRule
    alarm: cloudwatch.Alarm


def create_alarm(construct: Construct, rule: AlarmRule) -> CreatedAlarm:
    """Create the alarm of a rule. Missing data does not trigger the alarm, because a new site has no data."""
    created = cloudwatch.Alarm(
        construct,
        f"{rule.name}Alarm",
        alarm_description=describe_alarm(rule.text, rule.heading or rule.name),
        metric=rule.metric,
        threshold=rule.threshold,
        evaluation_periods=rule.periods,
        comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
        treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
    )
    return CreatedAlarm(rule, created)


def describe_alarm(text: str, heading: str) -> str:
    """Append the runbook's heading to an alarm's description."""
    end = "" if text.endswith("?") else "."
    return f"{text}{end} {RUNBOOK}#{heading.lower()}"


def create_error_rules(functions: Sequence[lambda_.Function], capability: Capability, *, least: int) -> list[AlarmRule]:
    """Return alarm rules for failed invocations of a capability's functions.

    Failed messages of a batch are no failed invocations. AWS charges per metric: pass only functions without alarms.
    """
    rules = []
    for start in range(0, len(functions), MAX_METRICS):
        metrics = {
            f"errors{index}": function.metric_errors(period=FIVE_MINUTES)
            for index, function in enumerate(functions[start : start + MAX_METRICS])
        }
        errors = cloudwatch.MathExpression(
            expression="SUM(FILL(METRICS(), 0))", using_metrics=metrics, label="errors", period=FIVE_MINUTES
        )
        text = f"Functions of {capability.lower()} fail: their logs show the errors, `sluice status` the backlog"
        name = f"{capability}Errors{start or ''}"
        rules.append(
            AlarmRule(
                name=name, text=text, metric=errors, threshold=least, periods=2, capability=capability, heading="Errors"
            )
        )
    return rules


def create_dead_letters_rule(queue: sqs.IQueue, name: str, description: str, *, least: int) -> AlarmRule:
    """Return an alarm rule for new messages in a dead-letter queue.

    An alarm on the total would stay active and hide new messages. SQS counts messages that functions send, but not
    messages that SQS moves there itself:
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-available-cloudwatch-metrics.html
    So the alarm uses the increase within five minutes. An idle empty queue reports no data, which counts as zero.
    """
    more = cloudwatch.MathExpression(
        expression="DIFF(FILL(letters, 0))",
        using_metrics={"letters": build_queue_metric(queue, VISIBLE)},
        label="new dead letters",
        period=FIVE_MINUTES,
    )
    text = f"There are new {description}: `sluice dlq list` shows the reasons, `sluice dlq redrive` redrives them"
    return AlarmRule(name=name, text=text, metric=more, threshold=least, heading=DEAD_LETTERS, notifies_end=False)


def build_account_metric(name: str, statistic: str) -> cloudwatch.Metric:
    """Return a Lambda metric over all functions of the account and region."""
    return cloudwatch.Metric(namespace="AWS/Lambda", metric_name=name, statistic=statistic, period=FIVE_MINUTES)


def create_composite_alarm(
    scope: Construct, capability: Capability, alarms: Sequence[cloudwatch.IAlarm], *, home: str
) -> cloudwatch.CompositeAlarm:
    """Create an alarm that is active while any of the given alarms is active.

    The rule refers to alarms by name, because ARNs are longer. The composite alarm's name starts with `home`.
    """
    return cloudwatch.CompositeAlarm(
        scope,
        f"{capability}Outage",
        composite_alarm_name=f"{home}-{capability}Outage",  # A generated name lacks the stage's prefix.
        alarm_description=describe_alarm(
            f"{capability}: at least one alarm is active; the CloudWatch console lists which", capability
        ),
        alarm_rule=cloudwatch.AlarmRule.from_string(" OR ".join(f'ALARM("{alarm_.alarm_name}")' for alarm_ in alarms)),
    )


def build_metric(
    name: str,
    service: str,
    *,
    stage: str | None,
    statistic: str = "Sum",
    dimensions: Mapping[str, str] | None = None,
    label: str | None = None,
) -> cloudwatch.Metric:
    """Return a metric that one of the stage's functions publishes."""
    return cloudwatch.Metric(
        namespace=add_stage_prefix(METRICS_NAMESPACE, stage),
        metric_name=name,
        dimensions_map={"service": service, **(dimensions or {})},
        statistic=statistic,
        period=FIVE_MINUTES,
        label=label,
    )


def build_queue_metric(
    queue: sqs.IQueue | str, name: str, *, period: Duration = FIVE_MINUTES, label: str | None = None
) -> cloudwatch.Metric:
    """Return an SQS metric that selects the queue only by name: a queue construct's metric also names its account."""
    return cloudwatch.Metric(
        namespace="AWS/SQS",
        metric_name=name,
        dimensions_map={"QueueName": queue if isinstance(queue, str) else queue.queue_name},
        statistic="Maximum",
        period=period,
        label=label,
    )
