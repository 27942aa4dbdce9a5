"""The parameters of operations: notifications, budgets and alarm thresholds. This module contains no constructs."""

from typing import Self

from pydantic import model_validator

from sluice.parameters import values as v
from sluice.parameters.values import InconsistentParameter, Model, param


class OperationsParameters(Model):
    """Notifications, budgets, a dashboard and alarm thresholds. Ages and lags are the oldest message's, in seconds."""

    alarm_email: v.Email | None = param(
        None,
        "E-mail address that alarms and budgets notify; AWS first sends it a link to confirm. The topic belongs to "
        "stack `SluiceState`, so redeploying operations needs no new confirmation. Null: no e-mail",
    )
    alarm_topic_arn: v.TopicArn | None = param(
        None,
        "ARN of an SNS standard topic to notify instead of an e-mail address. Its policy must allow "
        "`cloudwatch.amazonaws.com`, `events.amazonaws.com` and `budgets.amazonaws.com` to publish. Null: no topic",
    )
    budget_usd: int | None = param(
        100,
        "Monthly budget of the whole account, in US dollars. AWS notifies when the month's actual or forecast cost "
        "reaches it. Null, or without `alarm_email` or `alarm_topic_arn`: no monthly budget",
        ge=1,
        le=10_000_000,
    )
    budget_daily_usd: int | None = param(
        10,
        "Daily budget of the whole account, in US dollars. AWS knows a day's cost only hours later. Null, or "
        "without `alarm_email` or `alarm_topic_arn`: no daily budget",
        ge=1,
        le=1_000_000,
    )
    dashboard: bool = param(
        False,
        "Whether to create a CloudWatch dashboard of the metrics that the alarms use. A dashboard has a "
        "[price](../benchmarks/prices.toml), except the account's first three with at most 50 metrics each",
    )
    tracing: bool = param(False, "Whether functions send trace segments to AWS X-Ray: see [Traces](#traces)")
    offers_age_s: v.Age = param(
        10, "Alarm if the oldest offer is this many seconds old for three minutes. Offers wait for five seconds"
    )
    queue_age_s: v.Age = param(
        300,
        "Alarm if the oldest message of a source or ingress queue, or the oldest rendezvous event, is this many "
        "seconds old for five minutes",
    )
    bridge_lag_s: v.Age = param(900, "Alarm if routes forward messages that are this many seconds old for 15 minutes")
    pipeline_age_s: v.Age = param(
        900,
        "Alarm if the oldest message of the land job's queue is this many seconds old for five minutes. If "
        "`pipeline.streaming` is false, the threshold is a week instead: half of the queue's retention",
    )
    unanswered_percent: int = param(
        50, "Alarm if this percentage of offers is denied or times out for 15 minutes", ge=1, le=100
    )
    unanswered_least_offers: int = param(
        20,
        "Fewest offers in five minutes for which `unanswered_percent` is evaluated; fewer offers count as 0 %",
        ge=1,
        le=1_000_000,
    )
    dead_letters: int = param(
        1, "Alarm if this many messages arrive in a dead-letter queue within five minutes", ge=1, le=1_000_000
    )
    errors: int = param(
        3,
        "Alarm if a capability's functions fail this many times within five minutes, twice in a row",
        ge=1,
        le=1_000_000,
    )
    concurrency_percent: int = param(
        80,
        "Alarm if this percentage of the account's concurrent executions, or of the proxy function's reserved "
        "executions, is in use",
        ge=1,
        le=100,
    )
    account_concurrency: int = param(
        1_000,
        "The account's limit of concurrent executions, as Service Quotas shows it. `sluice deploy` sets this parameter",
        ge=10,
        le=1_000_000,
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.alarm_email is not None and self.alarm_topic_arn is not None:
            raise InconsistentParameter("alarm_email", "set either alarm_email or alarm_topic_arn, not both")
        return self
