"""When an alarm goes off, and the metrics that alarms and the dashboard have in common."""

from collections.abc import Mapping
from dataclasses import dataclass

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sqs as sqs

from sluice.stages import staged
from stacks.functions import METRICS_NAMESPACE

AGE, VISIBLE, IN_FLIGHT = (
    "ApproximateAgeOfOldestMessage",
    "ApproximateNumberOfMessagesVisible",
    "ApproximateNumberOfMessagesNotVisible",
)
FIVE_MINUTES = Duration.minutes(5)
SPARK_NAMESPACE = "Sluice/Spark"


@dataclass(frozen=True, slots=True)
class Rule:
    """When an alarm goes off: a number for so many periods, one after the other. Its id begins with `name`."""

    name: str
    text: str  # what is wrong, and what to do
    metric: cloudwatch.IMetric
    threshold: float
    periods: int = 1
    missing: cloudwatch.TreatMissingData = cloudwatch.TreatMissingData.NOT_BREACHING


def alarm(stack: Stack, rule: Rule) -> None:
    """Make the alarm of a rule; stack operations says whom it tells."""
    cloudwatch.Alarm(
        stack,
        f"{rule.name}Alarm",
        alarm_description=rule.text,
        metric=rule.metric,
        threshold=rule.threshold,
        evaluation_periods=rule.periods,
        comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
        treat_missing_data=rule.missing,
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
