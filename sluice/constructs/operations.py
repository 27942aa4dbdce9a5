"""Creates a site's alarms, its budgets, and the topic that alarms notify.

Other constructs may create alarms of their own. This module creates the alarms that concern several constructs, and
adds the actions to all alarms. `sluice.constructs.dashboard` creates the dashboard.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Unpack

from aws_cdk import Aws, Duration
from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.constructs.alarms import (
    AGE,
    AlarmRule,
    Capability,
    CreatedAlarm,
    build_account_metric,
    build_metric,
    build_queue_metric,
    create_composite_alarm,
    create_dead_letters_rule,
    create_error_rules,
)
from sluice.constructs.arguments import SiteProps, check_arguments
from sluice.constructs.dashboard import build_unanswered_metric, create_dashboard
from sluice.constructs.references import import_into, read_ref
from sluice.constructs.site_construct import NOTHING, SiteConstruct, StackOutput
from sluice.constructs.watched import WatchedSite
from sluice.errors import BadConfiguration
from sluice.federation.bridge_provisioner import build_bridge_queue_name
from sluice.parameters import Architecture, Parameters
from sluice.parameters.values import construct_id
from sluice.rendezvous.protocol.ends import End
from sluice.stages import add_stage_prefix

FAILED_RUNS = ["FAILED"]  # The state of a failed job run in EMR Serverless; cancelled runs are intended.


@check_arguments
class Operations(SiteConstruct):
    """Alarms of a site's constructs, which notify a topic; a dashboard and budgets if the parameters ask for them.

    Only one is allowed per stage, account and region. The policy of `topic` must allow `cloudwatch.amazonaws.com` to
    publish, for failed runs and budgets also `events.amazonaws.com` and `budgets.amazonaws.com`. Without a topic nobody
    is notified. `parameters` are those of section `operations`. Raises `BadConfiguration`, with the construct's path.
    """

    stack_name: ClassVar[str] = "SluiceOperations"

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        watched: Sequence[SiteConstruct],
        topic: sns.ITopic | None = None,
        parameters: Mapping[str, object] | Parameters = NOTHING,
        **props: Unpack[SiteProps],
    ) -> None:
        """Create the alarms of the constructs `watched`, which belong to one site."""
        if not isinstance(parameters, Parameters):
            parameters = {"budget_usd": None, "budget_daily_usd": None, **parameters}
        super().__init__(scope, id_, "operations", parameters, props)
        self.options = self.parameters.operations
        self.watched = WatchedSite(self, watched, self.parameters)
        if others := [construct for construct in watched if construct.parameters.stage != self.parameters.stage]:
            raise BadConfiguration(f"{self.node.path}: {others[0].node.path} belongs to another stage")
        self.topic = topic
        self.is_local = self.parameters.architecture is Architecture.LOCAL
        if topic is None and self.options.alarm_topic_arn is not None:
            self.topic = sns.Topic.from_topic_arn(self, "Topic", self.options.alarm_topic_arn)

    def _finish(self) -> None:
        for watched in self.watched.constructs:
            watched.finish()
        # The functions' own construct creates alarms on the functions' errors, so that no stack exports names.
        rules: list[tuple[SiteConstruct, AlarmRule]] = [
            (construct, rule)
            for construct in self.watched.constructs
            if construct.capability is not None
            for rule in create_error_rules(
                construct.unwatched_functions, construct.capability, least=self.options.errors
            )
        ]
        for construct, rule in [*rules, *((self, rule) for rule in _list_rules(self))]:
            # The embedded cloud supports neither alarms on several metrics nor budgets.
            if not self.is_local or isinstance(rule.metric, cloudwatch.Metric):
                construct.watch(rule)
        topic = import_into(self, self.topic)
        if not self.is_local and topic is not None:
            _create_budgets(self, topic)
        watches = [watch for construct in (*self.watched.constructs, self) for watch in construct.watches]
        dead_letters, outputs = list(self.watched.dead_letters()), []
        if self.options.dashboard:
            drawn = create_dashboard(self, self.watched, alarms=import_into(self, [watch.alarm for watch in watches]))
            outputs.append(StackOutput(name="DashboardName", value=drawn.dashboard_name))
        if topic is not None:
            _add_alarm_actions(self, topic, watches, merged=not self.is_local)
            _notify_failed_runs(self, topic)
            outputs.append(StackOutput(name="AlarmTopicArn", value=topic.topic_arn))
        urls = json.dumps({queue.description: queue.queue.queue_url for queue in dead_letters}, separators=(",", ":"))
        self.home.publish(self, [*outputs, StackOutput(name="DeadLetterUrls", value=urls)])


def create_alarms_topic(scope: Construct, parameters: Parameters) -> sns.Topic | None:
    """Create a topic for parameter `alarm_email`. Returns None if the parameter isn't set.

    The topic belongs to the stack of state, which is kept: a person confirms its subscription, and all stacks use it.
    """
    if parameters.operations.alarm_email is None:
        return None
    topic = sns.Topic(scope, "Alarms", display_name=add_stage_prefix("Sluice", parameters.stage), enforce_ssl=True)
    topic.add_subscription(subscriptions.EmailSubscription(parameters.operations.alarm_email))
    # This topic policy replaces the default, which lets the account's own alarms publish. EventBridge rules need this:
    # https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-use-conditions.html
    for service in ("cloudwatch", "budgets", "events"):
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                principals=[iam.ServicePrincipal(f"{service}.amazonaws.com")],
                conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            )
        )
    return topic


def _create_budgets(construct: Operations, topic: sns.ITopic) -> None:
    """Create budgets of the whole account.

    A budget by tag would stay at zero until the tag is activated for billing. Without a topic no budget is created,
    because it would notify nobody. AWS does not forecast daily costs. Budgets without actions cost nothing:
    https://aws.amazon.com/aws-cost-management/aws-budgets/pricing/
    """
    options, budget = construct.options, budgets.CfnBudget
    subscriber = budget.SubscriberProperty(address=topic.topic_arn, subscription_type="SNS")
    for id_, unit, amount, kinds in (
        ("Budget", "MONTHLY", options.budget_usd, ("ACTUAL", "FORECASTED")),
        ("DailyBudget", "DAILY", options.budget_daily_usd, ("ACTUAL",)),
    ):
        if amount is None:
            continue
        notifications = [
            budget.NotificationProperty(
                comparison_operator="GREATER_THAN", notification_type=kind, threshold=100, threshold_type="PERCENTAGE"
            )
            for kind in kinds
        ]
        budgets.CfnBudget(
            construct,
            id_,
            budget=budget.BudgetDataProperty(
                budget_type="COST", time_unit=unit, budget_limit=budget.SpendProperty(amount=amount, unit="USD")
            ),
            notifications_with_subscribers=[
                budget.NotificationWithSubscribersProperty(notification=notification, subscribers=[subscriber])
                for notification in notifications
            ],
        )


def _list_rules(construct: Operations) -> Iterator[AlarmRule]:
    """Yield the rules of the alarms that belong to this construct."""
    options = construct.options
    yield from _list_age_rules(construct)
    if construct.watched.exchange is not None:
        # Bridge queues are created at run time, so the alarms use the functions' metrics of lag and outages.
        yield AlarmRule(
            name="BridgeLag",
            text="Routes forward messages too late: `sluice status` shows the route and its queue",
            metric=build_metric("LagMs", "bridge", stage=construct.parameters.stage, statistic="Maximum"),
            threshold=construct.options.bridge_lag_s * 1000,
            periods=3,
            capability=Capability.FEDERATION,
        )
        yield AlarmRule(
            name="RoutesDown",
            text="Routes are down for 15 minutes: `sluice link list` shows the reason",
            metric=build_metric("RoutesDown", "links", stage=construct.parameters.stage, statistic="Minimum"),
            threshold=1,
            periods=3,
            capability=Capability.FEDERATION,
        )
    if any(queue.parameters.consumers for queue in construct.watched.split_queues):
        yield AlarmRule(
            name="ConsumersAway",
            text="Consumers aren't back for 15 minutes after the last session: `sluice split status` shows the reason",
            metric=build_metric("ConsumersAway", "control", stage=construct.parameters.stage, statistic="Minimum"),
            threshold=1,
            periods=3,
            capability=Capability.SPLITTING,
        )
    for queue in construct.watched.dead_letters():
        yield create_dead_letters_rule(queue.queue, queue.name, queue.description, least=options.dead_letters)
    if construct.watched.rendezvous is not None:
        yield AlarmRule(
            name="Unanswered",
            text="Too many offers are denied or time out: "
            "`sluice rendezvous status` shows the waiting clients and proxies",
            metric=build_unanswered_metric(
                construct.parameters.stage, least_offers=construct.options.unanswered_least_offers
            ),
            threshold=construct.options.unanswered_percent,
            periods=3,
            capability=Capability.RENDEZVOUS,
        )
        yield AlarmRule(
            name="Stale",
            text="Offers reach the broker after their clients gave up: check its throttles and its concurrency",
            metric=build_metric(End.OFFER_STALE, "broker", stage=construct.parameters.stage),
            threshold=construct.options.unanswered_least_offers,
            periods=3,
            capability=Capability.RENDEZVOUS,
        )
    # All functions of the account share one pool of concurrency, so these alarms cover the whole account.
    yield AlarmRule(
        name="Throttles",
        text="Invocations in the account are throttled for 15 minutes: the dashboard shows of which functions",
        metric=build_account_metric("Throttles", "Sum"),
        threshold=1,
        periods=3,
    )
    percent, most = options.concurrency_percent, options.account_concurrency
    yield AlarmRule(
        name="AccountConcurrency",
        text=f"{percent} % of the account's {most} concurrent executions are in use: request a higher quota from AWS",
        metric=build_account_metric("ClaimedAccountConcurrency", "Maximum"),
        threshold=most * percent / 100,
        periods=2,
    )


def _list_age_rules(construct: Operations) -> Iterator[AlarmRule]:
    """Yield alarm rules for the age of a queue's oldest message. It must exceed a threshold for minutes in a row."""
    options = construct.options

    def make_rule(
        name: str,
        queue: sqs.IQueue | str,
        threshold_s: int,
        text: str,
        *,
        of: Capability | None,
        heading: str = "",
        minutes: int = 5,
    ) -> AlarmRule:
        age = build_queue_metric(queue, AGE, period=Duration.minutes(1))
        return AlarmRule(
            name=f"{name}Age",
            text=text,
            metric=age,
            threshold=threshold_s,
            periods=minutes,
            capability=of,
            heading=heading,
        )

    if (offers_queue := construct.watched.offers_queue) is not None:
        late = "Offers wait longer for the broker than their clients do: check its throttles and errors"
        yield make_rule("Offers", offers_queue, options.offers_age_s, late, of=Capability.RENDEZVOUS, minutes=3)
    for queue in construct.watched.sources():
        text = (
            f"Queue {queue.description}: messages wait too long for the {queue.reader}: check its throttles and errors"
        )
        yield make_rule(queue.name, queue.queue, options.queue_age_s, text, of=queue.capability, heading=queue.heading)
    if (landed_queue := construct.watched.landed_queue) is not None:
        text = "Messages wait too long for the land job: `sluice pipeline status` shows whether it runs"
        age_s = construct.watched.pipeline_age_s
        yield make_rule("Pipeline", landed_queue, age_s, text, of=Capability.PIPELINE)
    if (exchange := construct.watched.exchange) is None:
        return
    tag = exchange.options.tag
    for route in exchange.parameters.declared.routes:
        # A declared route's queue is watched if the route starts here and the queue's name is known at synthesis.
        # Without `tag`, bridge queues' names contain the site's region and account, which are unknown at synthesis.
        if route.src_is_local and route.src_is_queue:
            waits = import_into(construct, exchange.state.bound_queues.get(route.src, route.src))
        elif route.src_is_local and tag is not None:
            waits = build_bridge_queue_name(tag, route, stage=construct.parameters.stage)
        else:
            continue
        text = f"Messages wait too long for route {route.name}: `sluice route status` shows the reason"
        name = construct_id("Route", route.name)
        yield make_rule(name, waits, options.bridge_lag_s, text, of=Capability.FEDERATION, heading="RouteAge")


def _add_alarm_actions(
    construct: Operations, topic: sns.ITopic, watches: Sequence[CreatedAlarm], *, merged: bool
) -> None:
    """Add notifications: to one composite alarm per capability, and to each alarm without a capability.

    Composite alarms cost five times as much as single alarms, so they are created only if there is a topic.
    """
    alarms_by_capability: dict[Capability, list[cloudwatch.IAlarm]] = {}
    for watch in watches:
        if merged and watch.rule.capability is not None:
            alarms_by_capability.setdefault(watch.rule.capability, []).append(import_into(construct, watch.alarm))
            continue
        action = actions.SnsAction(import_into(watch.alarm, topic))
        watch.alarm.add_alarm_action(action)
        if watch.rule.notifies_end:
            watch.alarm.add_ok_action(action)
    for capability, alarms in alarms_by_capability.items():
        outage = create_composite_alarm(construct, capability, alarms, home=construct.home.name)
        action = actions.SnsAction(topic)
        outage.add_alarm_action(action)
        outage.add_ok_action(action)


def _notify_failed_runs(construct: Operations, topic: sns.ITopic) -> None:
    """Notify the topic of each failed job run with the run's id and reason, which an alarm cannot contain."""
    application = None if construct.watched.pipeline is None else construct.watched.pipeline.application
    if application is None:
        return
    events.Rule(
        construct,
        "FailedRuns",
        description="Sluice: failed job runs",
        event_pattern=events.EventPattern(
            source=["aws.emr-serverless"],
            detail_type=["EMR Serverless Job Run State Change"],
            detail={"applicationId": [read_ref(construct, application)], "state": FAILED_RUNS},
        ),
        # The topic is imported by ARN: otherwise CDK would let any account's rules publish to the topic.
        targets=[targets.SnsTopic(sns.Topic.from_topic_arn(construct, "Told", topic.topic_arn))],
    )
