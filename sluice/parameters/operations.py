"""The parameters of operations: who is told of what, and from which figures on. No construct is here."""

from typing import Self

from pydantic import model_validator

from sluice.parameters import values as v
from sluice.parameters.values import InconsistentParameter, Model, of


class SiteParameters(Model):
    """A site that the dashboard over several draws."""

    name: v.SiteName = of(..., "as the dashboard calls it")
    region: v.RegionName = of(..., "where it is")
    stage: v.Stage | None = of(None, "its stage, where it has one")
    account: v.Account | None = of(
        None, "another account's twelve digits; it shares its metrics with this one (CloudWatch cross-account access)"
    )


class OperationsParameters(Model):
    """Who is told of what, and from which figures on. Ages and lags are of the oldest message."""

    alarm_email: v.Email | None = of(
        None, "an address; AWS sends it a link to confirm. The topic is in `SluiceState`, so that it is confirmed once"
    )
    alarm_topic_arn: v.TopicArn | None = of(
        None,
        "a topic of yours in place of that. Its policy has to let `cloudwatch.amazonaws.com`, `events.amazonaws.com` "
        "and `budgets.amazonaws.com` publish; it is no FIFO topic",
    )
    budget_usd: int | None = of(
        100,
        "they are told as well when a month's costs of the account reach it, or are expected to. Null: no budget",
        ge=1,
        le=10_000_000,
    )
    budget_daily_usd: int | None = of(
        10, "the same of a day's costs, as AWS knows them: hours later. Null: no such budget", ge=1, le=1_000_000
    )
    dashboard: bool = of(
        False, "what the alarms hold on to, drawn: $3 a month, but for the account's first three of up to 50 metrics"
    )
    sites: tuple[SiteParameters, ...] = of(
        (), "`{name, region, stage, account}`: a second dashboard, with a row for each of these sites", max_length=20
    )
    tracing: bool = of(False, "functions send segments to X-Ray: see [Traces](#traces)")
    offers_age_s: v.Age = of(10, "of the offers queue, for three minutes: clients wait five seconds")
    queue_age_s: v.Age = of(
        300, "of the queues that users and peers send to, for five minutes; and of the events that wait to be counted"
    )
    bridge_lag_s: v.Age = of(900, "of what routes forward, for a quarter of an hour")
    pipeline_age_s: v.Age = of(
        900,
        "of the queue that the land job reads, for five minutes. Where `pipeline.streaming` is false it is a week, "
        "half of what the queue keeps",
    )
    unanswered_percent: int = of(50, "of offers, denied or timed out, for a quarter of an hour", ge=1, le=100)
    unanswered_least_offers: int = of(20, "five minutes with fewer offers count as all answered", ge=1, le=1_000_000)
    dead_letters: int = of(1, "messages that come to a queue of dead letters in five minutes", ge=1, le=1_000_000)
    errors: int = of(3, "of a capability's functions in five minutes, twice on end", ge=1, le=1_000_000)
    concurrency_percent: int = of(
        80, "of the functions that may run at once: the account's, and those reserved for proxies", ge=1, le=100
    )
    account_concurrency: int = of(
        1_000, "how many functions the account may run at once, as Service Quotas shows it", ge=10, le=1_000_000
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        v.check_names("sites", [each.name for each in self.sites])
        if self.alarm_email is not None and self.alarm_topic_arn is not None:
            raise InconsistentParameter("alarm_email", "either an address or alarm_topic_arn, not both")
        return self
