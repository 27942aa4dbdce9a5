"""Operations: what people look at, and what calls them. Dashboards, alarms, and the topic that alarms go to.

What makes something to be watched may have alarms of its own; here are those about what lies between capabilities, and
here all of them get their actions. What is drawn is in `sluice.constructs.dashboard`.
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
    Capability,
    Rule,
    Watch,
    all_functions,
    composite,
    dead_letters_rule,
    errors_rules,
    of_queue,
    ours,
)
from sluice.constructs.dashboard import draw, draw_sites, unanswered_percent
from sluice.constructs.site_construct import NOTHING, Output, SiteConstruct, SiteProps, parameters_of
from sluice.constructs.watched import Watched
from sluice.errors import BadConfiguration
from sluice.federation.bridge_works import bridge_queue_name
from sluice.parameters import Architecture, Parameters
from sluice.parameters.values import id_of
from sluice.rendezvous.protocol.ends import End
from sluice.stages import staged

FAILED_RUNS = ["FAILED"]  # of EMR Serverless; a run that is cancelled was meant to be


class Operations(SiteConstruct):
    """Alarms of what a site has, told to a topic; dashboards and budgets where parameters say so.

    An account and region has one for a stage. `topic` is yours: its policy has to let `cloudwatch.amazonaws.com`, and
    for failed runs and budgets `events.amazonaws.com` and `budgets.amazonaws.com`, publish. Without one nobody is told.
    `parameters` are those of section `operations`. Raises `BadConfiguration`, with the construct's path.
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
        """`watched` are the constructs of one site."""
        if not isinstance(parameters, Parameters):
            parameters = {"budget_usd": None, "budget_daily_usd": None, **parameters}
        super().__init__(scope, id_, parameters_of(scope, id_, "operations", parameters, props))
        self.options = self.parameters.operations
        self.watched = Watched(watched, self.parameters)
        if others := [each for each in watched if each.parameters.stage != self.parameters.stage]:
            raise BadConfiguration(f"{self.node.path}: {others[0].node.path} is of another stage")
        self.topic = topic
        self.is_local = self.parameters.architecture is Architecture.LOCAL
        if topic is None and self.options.alarm_topic_arn is not None:
            self.topic = sns.Topic.from_topic_arn(self, "Topic", self.options.alarm_topic_arn)

    def _finish(self) -> None:
        for each in self.watched.constructs:
            each.finish()
        for construct, rule in [*_errors(self), *((self, rule) for rule in _rules(self))]:
            # The embedded cloud refuses alarms of more than one metric, and budgets.
            if not self.is_local or isinstance(rule.metric, cloudwatch.Metric):
                construct.watch(rule)
        if not self.is_local:
            _budgets(self)
        watches = [watch for each in (*self.watched.constructs, self) for watch in each.watches]
        dead_letters, outputs = list(self.watched.dead_letters()), []
        if self.options.dashboard:
            drawn = draw(self, self.watched, alarms=[watch.alarm for watch in watches])
            outputs.append(Output(name="DashboardName", value=drawn.dashboard_name))
        if self.options.sites:
            sites = draw_sites(self, self.options.sites)
            outputs.append(Output(name="SitesDashboardName", value=sites.dashboard_name))
        if self.topic is not None:
            _tell(self, self.topic, watches, merged=not self.is_local)
            _tell_of_runs(self, self.topic)
            outputs.append(Output(name="AlarmTopicArn", value=self.topic.topic_arn))
        urls = json.dumps({each.told: each.queue.queue_url for each in dead_letters}, separators=(",", ":"))
        self.home.publish(self, [*outputs, Output(name="DeadLetterUrls", value=urls)])


def alarms_topic(scope: Construct, parameters: Parameters) -> sns.Topic | None:
    """Make a topic for the address that the parameters have; None without one.

    Ours is in the stack that is kept: an address has to confirm its subscription by hand, and alarms of all stacks
    refer to it.
    """
    if parameters.operations.alarm_email is None:
        return None
    topic = sns.Topic(scope, "Alarms", display_name=staged("Sluice", parameters.stage), enforce_ssl=True)
    topic.add_subscription(subscriptions.EmailSubscription(parameters.operations.alarm_email))
    # A topic with a policy has no longer the one by which its own account's alarms may publish. Of rules:
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


def _budgets(made: Operations) -> None:
    """Of the whole account: a budget by tag stays at zero until somebody activates the tag for billing.

    They are there too where nobody is to be told: the account's owner finds them among the account's budgets. What a
    day will cost AWS foretells for no budget. Budgets without actions cost nothing:
    https://aws.amazon.com/aws-cost-management/aws-budgets/pricing/
    """
    options, budget = made.options, budgets.CfnBudget
    topic = [] if made.topic is None else [made.topic.topic_arn]
    subscribers = [budget.SubscriberProperty(address=arn, subscription_type="SNS") for arn in topic]
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
            made,
            id_,
            budget=budget.BudgetDataProperty(
                budget_type="COST", time_unit=unit, budget_limit=budget.SpendProperty(amount=amount, unit="USD")
            ),
            notifications_with_subscribers=[
                budget.NotificationWithSubscribersProperty(notification=notification, subscribers=subscribers)
                for notification in notifications
                if subscribers
            ],
        )


def _errors(made: Operations) -> Iterator[tuple[SiteConstruct, Rule]]:
    """List the alarms of functions' errors, each for the construct that has them: nothing has to be exported."""
    for each in made.watched.constructs:
        if each.capability is not None:
            for rule in errors_rules(each.unwatched_functions, each.capability, least=made.options.errors):
                yield each, rule


def _rules(made: Operations) -> Iterator[Rule]:
    """List all alarms that are made here."""
    options = made.options
    yield from _age_rules(made)
    if made.watched.exchange is not None:
        yield from _federation_rules(made)
    for queue in made.watched.dead_letters():
        yield dead_letters_rule(queue.queue, queue.name, queue.told, least=options.dead_letters)
    if made.watched.rendezvous is not None:
        yield from _rendezvous_rules(made)
    # Whoever throttles takes from one pool, and so they are the account's, whoever else has functions there.
    yield Rule(
        name="Throttles",
        text="Functions of the account are turned away for a quarter of an hour: the dashboard shows which",
        metric=all_functions("Throttles", "Sum"),
        threshold=1,
        periods=3,
    )
    percent, most = options.concurrency_percent, options.account_concurrency
    yield Rule(
        name="AccountConcurrency",
        text=f"Functions claim {percent} % of the {most} that may run at once in the account: ask AWS for more in time",
        metric=all_functions("ClaimedAccountConcurrency", "Maximum"),
        threshold=most * percent / 100,
        periods=2,
    )


def _federation_rules(made: Operations) -> Iterator[Rule]:
    # Queues of routes are made at run time. So the functions say how late their messages are, and what doesn't go.
    yield Rule(
        name="BridgeLag",
        text="Messages go over routes long after they came: `sluice status` shows which, and its queue",
        metric=ours("LagMs", "bridge", stage=made.parameters.stage, statistic="Maximum"),
        threshold=made.options.bridge_lag_s * 1000,
        periods=3,
        capability=Capability.FEDERATION,
    )
    yield Rule(
        name="RoutesDown",
        text="Routes carry nothing for a quarter of an hour: `sluice link list` says why",
        metric=ours("RoutesDown", "links", stage=made.parameters.stage, statistic="Minimum"),
        threshold=1,
        periods=3,
        capability=Capability.FEDERATION,
    )


def _rendezvous_rules(made: Operations) -> Iterator[Rule]:
    yield Rule(
        name="Unanswered",
        text="Too many offers find no proxy, or none that answers in time: `sluice rendezvous status` says who waits",
        metric=unanswered_percent(made.parameters.stage, least_offers=made.options.unanswered_least_offers),
        threshold=made.options.unanswered_percent,
        periods=3,
        capability=Capability.RENDEZVOUS,
    )
    yield Rule(
        name="Stale",
        text="Offers come too late to be answered: is the broker throttled, are its parameters too small for the load?",
        metric=ours(End.OFFER_STALE, "broker", stage=made.parameters.stage),
        threshold=made.options.unanswered_least_offers,
        periods=3,
        capability=Capability.RENDEZVOUS,
    )


def _age_rules(made: Operations) -> Iterator[Rule]:
    """Watch for what waits for longer than it should, for five minutes on end."""
    options = made.options

    def rule(
        name: str,
        queue: sqs.IQueue | str,
        threshold_s: int,
        text: str,
        *,
        of: Capability | None,
        heading: str = "",
        minutes: int = 5,
    ) -> Rule:
        age = of_queue(queue, AGE, period=Duration.minutes(1))
        return Rule(
            name=f"{name}Age",
            text=text,
            metric=age,
            threshold=threshold_s,
            periods=minutes,
            capability=of,
            heading=heading,
        )

    if (rendezvous := made.watched.rendezvous) is not None:
        late = "Offers wait for the broker longer than their clients do: is it throttled, does it fail?"
        yield rule("Offers", rendezvous.offers_queue, options.offers_age_s, late, of=Capability.RENDEZVOUS, minutes=3)
    for queue in made.watched.sources():
        text = f"Queue {queue.told}: messages wait for their {queue.reader}: is it throttled, does it fail?"
        yield rule(queue.name, queue.queue, options.queue_age_s, text, of=queue.capability, heading=queue.heading)
    if made.watched.pipeline is not None:
        text = "Messages wait for the land job: `sluice pipeline status` says whether it runs"
        age_s = made.watched.pipeline_age_s
        yield rule("Pipeline", made.watched.pipeline.queue, age_s, text, of=Capability.PIPELINE)
    for route, waits in _declared_queues(made):
        text = f"Messages wait for route {route}: `sluice route status` says why"
        name = id_of("Route", route)
        yield rule(name, waits, options.bridge_lag_s, text, of=Capability.FEDERATION, heading="RouteAge")


def _declared_queues(made: Operations) -> Iterator[tuple[str, sqs.IQueue | str]]:
    """Find the queues of declared routes that begin here, by the routes' names, as far as they are known now."""
    if (exchange := made.watched.exchange) is None:
        return
    tag, bound = exchange.options.tag, exchange.state.bound
    for route in exchange.parameters.declared.routes:
        # Without a tag of its own the site is called by its region and account, which a synth doesn't know.
        if route.src_is_local and route.src_is_queue:
            yield route.name, bound.get(route.src, route.src)
        elif route.src_is_local and tag is not None:
            yield route.name, bridge_queue_name(tag, route, stage=made.parameters.stage)


def _tell(made: Operations, topic: sns.ITopic, watches: Sequence[Watch], *, merged: bool) -> None:
    """Say when something is wrong, and when it is over: of a capability once, whatever of it goes wrong beside.

    Composite alarms cost five times as much as others, so there are none where they would tell nobody.
    """
    action = actions.SnsAction(topic)
    parts: dict[Capability, list[cloudwatch.Alarm]] = {}
    for watch in watches:
        if merged and watch.rule.capability is not None:
            parts.setdefault(watch.rule.capability, []).append(watch.alarm)
            continue
        watch.alarm.add_alarm_action(action)
        if watch.rule.ends:
            watch.alarm.add_ok_action(action)
    for capability, alarms in parts.items():
        outage = composite(made, capability, alarms, home=made.home.name)
        outage.add_alarm_action(action)
        outage.add_ok_action(action)


def _tell_of_runs(made: Operations, topic: sns.ITopic) -> None:
    """Each failed run by itself, with its id and its reason: the alarm knows only that there is one."""
    application = None if made.watched.pipeline is None else made.watched.pipeline.application
    if application is None:
        return
    events.Rule(
        made,
        "FailedRuns",
        description="Sluice: failed job runs",
        event_pattern=events.EventPattern(
            source=["aws.emr-serverless"],
            detail_type=["EMR Serverless Job Run State Change"],
            detail={"applicationId": [application.attr_application_id], "state": FAILED_RUNS},
        ),
        # By its ARN alone: to a topic that it can change the target adds that any account's rules may publish.
        targets=[targets.SnsTopic(sns.Topic.from_topic_arn(made, "Told", topic.topic_arn))],
    )
