"""Operations: what people look at, and what calls them. Dashboards, alarms, and the topic that alarms go to.

A stack that makes something to be watched may have alarms of its own; here are those about what lies between stacks,
and here all of them get their actions. What is drawn is in `stacks.dashboard`.
"""

from collections.abc import Iterator, Sequence

from aws_cdk import Aws, CfnOutput, Duration, Stack
from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_emrserverless as emr
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.federation.bridge_works import bridge_queue_name
from sluice.rendezvous.broker import OfferMetric
from sluice.stacks.alarms import (
    AGE,
    DEAD_LETTERS,
    Capability,
    Rule,
    Watch,
    WatchedStack,
    alarm,
    all_functions,
    composite,
    dead_letters_rule,
    errors_rules,
    of_queue,
    ours,
)
from sluice.stacks.dashboard import Watched, WatchedQueue, draw, unanswered_percent
from sluice.stacks.parameters import Architecture, OperationsParameters, Parameters
from sluice.stacks.sites_dashboard import draw_sites
from sluice.stacks.state import LONGEST, StateStack
from sluice.stacks.values import id_of
from sluice.stages import staged

# Where the land job runs from time to time, what waits may be old, but not lost.
UNSTREAMED_AGE_S = int(LONGEST.to_seconds()) // 2
DEAD_LETTERS_OF = {
    "DeadLetters": "dead letters of the rendezvous",
    "SplittingDeadLetters": "dead letters of splitting",
    "FederationDeadLetters": "dead letters of federation",
    "FederationFifoDeadLetters": "dead letters of federation, FIFO",
}
FAILED_RUNS = ["FAILED"]  # of EMR Serverless; a run that is cancelled was meant to be


class OperationsStack(WatchedStack):
    """Stack `SluiceOperations`. `watched` are the stacks whose functions are watched and whose alarms tell here."""

    def __init__(
        self, scope: Construct, parameters: Parameters, *, state: StateStack, watched: Sequence[WatchedStack]
    ) -> None:
        super().__init__(
            scope, staged("SluiceOperations", parameters.stage), description="Sluice: dashboards and alarms"
        )
        self.parameters = parameters
        self.options: OperationsParameters = parameters.operations
        self.state = state
        self.application = _application(watched)
        self.topic = _topic(self)
        is_local = parameters.architecture is Architecture.LOCAL
        for stack, rule in [*_errors(self, watched), *((self, rule) for rule in _rules(self))]:
            # The embedded cloud refuses alarms of more than one metric, and budgets.
            if not is_local or isinstance(rule.metric, cloudwatch.Metric):
                alarm(stack, rule)
        if not is_local:
            _budgets(self)
        watches = [each for stack in (*watched, self) for each in stack.watches]
        drawn = Watched(
            stage=parameters.stage,
            alarms=[each.alarm for each in watches],
            options=self.options,
            offers=state.offers_queue,
            sources=list(_sources(state)),
            dead_letters=list(_dead_letters(state)),
            split={each.parameters.queue_id: each for each in state.split_queues},
            main=None if state.pipeline is None else state.pipeline.main,
            main_age_s=_pipeline_age_s(parameters),
            application_id=None if self.application is None else self.application.attr_application_id,
            stacks=[each.stack_name for each in watched],
        )
        if self.options.dashboard:
            CfnOutput(self, "DashboardName", value=draw(self, drawn).dashboard_name)
        if self.options.sites:
            CfnOutput(self, "SitesDashboardName", value=draw_sites(self, self.options.sites).dashboard_name)
        if self.topic is not None:
            _tell(self, self.topic, watches, merged=not is_local)
            _tell_of_runs(self, self.topic)
            CfnOutput(self, "AlarmTopicArn", value=self.topic.topic_arn)
        urls = {each.told: each.queue.queue_url for each in _dead_letters(state)}
        CfnOutput(self, "DeadLetterUrls", value=self.to_json_string(urls))


def _application(watched: Sequence[Stack]) -> emr.CfnApplication | None:
    """Find what jobs run on, where that is EMR Serverless."""
    children = (child for stack in watched for child in stack.node.children)
    return next((child for child in children if isinstance(child, emr.CfnApplication)), None)


def _topic(stack: OperationsStack) -> sns.ITopic | None:
    """Find the topic that is given, or make one for the address; None where nobody is to be told.

    Ours is in the stack that is kept: an address has to confirm its subscription by hand, and alarms of all stacks
    refer to it.
    """
    options = stack.options
    if options.alarm_topic_arn is not None:
        return sns.Topic.from_topic_arn(stack, "Topic", options.alarm_topic_arn)
    if options.alarm_email is None:
        return None
    topic = sns.Topic(stack.state, "Alarms", display_name=staged("Sluice", stack.parameters.stage), enforce_ssl=True)
    topic.add_subscription(subscriptions.EmailSubscription(options.alarm_email))
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


def _budgets(stack: OperationsStack) -> None:
    """Of the whole account: a budget by tag stays at zero until somebody activates the tag for billing.

    They are there too where nobody is to be told: the account's owner finds them among the account's budgets. What a
    day will cost AWS foretells for no budget. Budgets without actions cost nothing:
    https://aws.amazon.com/aws-cost-management/aws-budgets/pricing/
    """
    options = stack.options
    for id_, unit, amount, kinds in (
        ("Budget", "MONTHLY", options.budget_usd, ("ACTUAL", "FORECASTED")),
        ("DailyBudget", "DAILY", options.budget_daily_usd, ("ACTUAL",)),
    ):
        if amount is not None:
            _budget(stack, id_, unit=unit, amount=amount, kinds=kinds)


def _budget(stack: OperationsStack, id_: str, *, unit: str, amount: int, kinds: Sequence[str]) -> None:
    budget = budgets.CfnBudget
    told = []
    if stack.topic is not None:
        told = [budget.SubscriberProperty(address=stack.topic.topic_arn, subscription_type="SNS")]
    budgets.CfnBudget(
        stack,
        id_,
        budget=budget.BudgetDataProperty(
            budget_type="COST", time_unit=unit, budget_limit=budget.SpendProperty(amount=amount, unit="USD")
        ),
        notifications_with_subscribers=[
            budget.NotificationWithSubscribersProperty(
                notification=budget.NotificationProperty(
                    comparison_operator="GREATER_THAN",
                    notification_type=kind,
                    threshold=100,
                    threshold_type="PERCENTAGE",
                ),
                subscribers=told,
            )
            for kind in kinds
            if told
        ],
    )


def _sources(state: StateStack) -> Iterator[WatchedQueue]:
    """List what users and peers send and our functions read, but for offers.

    What waits there for long isn't being looked after. What functions send to functions is watched by their errors and
    throttles. A source whose consumers are re-pointed is theirs while nothing is split.
    """
    for queues in state.split_queues:
        told, reader = f"source of {queues.parameters.queue_id}", "function" if queues.main else "consumer"
        yield WatchedQueue(f"{queues.id}Source", queues.source, told, Capability.SPLITTING, "SourceAge", reader)
    for ingress in state.federation.ingresses:
        of = ingress.exchange or ("of links" if ingress.from_links else "of publishers")
        told = f"ingress {of}{', FIFO' if ingress.fifo else ''}"
        yield WatchedQueue(ingress.id, ingress.queue, told, Capability.FEDERATION, "IngressAge")


def _dead_letters(state: StateStack) -> Iterator[WatchedQueue]:
    told = DEAD_LETTERS_OF | {
        f"{queues.id}{DEAD_LETTERS}": f"dead letters of {queues.parameters.queue_id}" for queues in state.split_queues
    }
    for child in state.node.children:
        if isinstance(child, sqs.Queue) and child.node.id.endswith(DEAD_LETTERS):
            yield WatchedQueue(child.node.id, child, told.get(child.node.id, child.node.id), None, DEAD_LETTERS)


def _errors(stack: OperationsStack, watched: Sequence[WatchedStack]) -> Iterator[tuple[WatchedStack, Rule]]:
    """List the alarms of functions' errors, each for the stack that has the functions: nothing has to be exported."""
    for each in watched:
        if each.capability is not None:
            for rule in errors_rules(each, each.capability, least=stack.options.errors):
                yield each, rule


def _rules(stack: OperationsStack) -> Iterator[Rule]:
    """List all alarms of this stack."""
    state, options, stage = stack.state, stack.options, stack.parameters.stage
    yield from _age_rules(stack)
    # Queues of routes are made at run time. So the functions say how late their messages are, and what doesn't go.
    yield Rule(
        name="BridgeLag",
        text="Messages go over routes long after they came: `sluice status` shows which, and its queue",
        metric=ours("LagMs", "bridge", stage=stage, statistic="Maximum"),
        threshold=options.bridge_lag_s * 1000,
        periods=3,
        capability=Capability.FEDERATION,
    )
    yield Rule(
        name="RoutesDown",
        text="Routes carry nothing for a quarter of an hour: `sluice link list` says why",
        metric=ours("RoutesDown", "links", stage=stage, statistic="Minimum"),
        threshold=1,
        periods=3,
        capability=Capability.FEDERATION,
    )
    for queue in _dead_letters(state):
        yield dead_letters_rule(queue.queue, queue.name, queue.told, least=options.dead_letters)
    yield Rule(
        name="Unanswered",
        text="Too many offers find no proxy, or none that answers in time: `sluice rendezvous status` says who waits",
        metric=unanswered_percent(stage, least_offers=options.unanswered_least_offers),
        threshold=options.unanswered_percent,
        periods=3,
        capability=Capability.RENDEZVOUS,
    )
    yield Rule(
        name="Stale",
        text="Offers come too late to be answered: is the broker throttled, are its parameters too small for the load?",
        metric=ours(OfferMetric.STALE, "broker", stage=stage),
        threshold=options.unanswered_least_offers,
        periods=3,
        capability=Capability.RENDEZVOUS,
    )
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


def _age_rules(stack: OperationsStack) -> Iterator[Rule]:
    """Watch for what waits for longer than it should, for five minutes on end."""
    options, state = stack.options, stack.state

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

    late = "Offers wait for the broker longer than their clients do: is it throttled, does it fail?"
    yield rule("Offers", state.offers_queue, options.offers_age_s, late, of=Capability.RENDEZVOUS, minutes=3)
    for queue in _sources(state):
        text = f"Queue {queue.told}: messages wait for their {queue.reader}: is it throttled, does it fail?"
        yield rule(queue.name, queue.queue, options.queue_age_s, text, of=queue.capability, heading=queue.heading)
    if state.pipeline is not None:
        text = "Messages wait for the land job: `sluice pipeline status` says whether it runs"
        age_s = _pipeline_age_s(stack.parameters)
        yield rule("Pipeline", state.pipeline.main, age_s, text, of=Capability.PIPELINE)
    for route, made in _declared_queues(stack):
        text = f"Messages wait for route {route}: `sluice route status` says why"
        name = id_of("Route", route)
        yield rule(name, made, options.bridge_lag_s, text, of=Capability.FEDERATION, heading="RouteAge")


def _pipeline_age_s(parameters: Parameters) -> int:
    return parameters.operations.pipeline_age_s if parameters.pipeline.streaming else UNSTREAMED_AGE_S


def _declared_queues(stack: OperationsStack) -> Iterator[tuple[str, sqs.IQueue | str]]:
    """Find the queues of declared routes that begin here, by the routes' names, as far as they are known now."""
    tag, bound = stack.parameters.federation.tag, stack.state.federation.bound
    for route in stack.parameters.declared.routes:
        given = route.src if route.src_is_queue else route.queue
        # Without a tag of its own the site is called by its region and account, which a synth doesn't know.
        if route.src_is_local and given is not None:
            yield route.name, bound.get(given, given)
        elif route.src_is_local and tag is not None:
            yield route.name, bridge_queue_name(tag, route, stage=stack.parameters.stage)


def _tell(stack: OperationsStack, topic: sns.ITopic, watches: Sequence[Watch], *, merged: bool) -> None:
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
        outage = composite(stack, capability, alarms)
        outage.add_alarm_action(action)
        outage.add_ok_action(action)


def _tell_of_runs(stack: OperationsStack, topic: sns.ITopic) -> None:
    """Each failed run by itself, with its id and its reason: the alarm knows only that there is one."""
    if stack.application is None:
        return
    events.Rule(
        stack,
        "FailedRuns",
        description="Sluice: failed job runs",
        event_pattern=events.EventPattern(
            source=["aws.emr-serverless"],
            detail_type=["EMR Serverless Job Run State Change"],
            detail={"applicationId": [stack.application.attr_application_id], "state": FAILED_RUNS},
        ),
        # By its ARN alone: to a topic that it can change the target adds that any account's rules may publish.
        targets=[targets.SnsTopic(sns.Topic.from_topic_arn(stack, "Told", topic.topic_arn))],
    )
