"""Operations: what people look at, and what calls them. One dashboard, alarms, and the topic that alarms go to.

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
from sluice.stages import staged
from stacks.alarms import AGE, VISIBLE, Rule, alarm, of_queue, ours
from stacks.dashboard import Watched, WatchedQueue, deletions_failed, denied_percent, draw
from stacks.parameters import Architecture, OperationsParameters, Parameters
from stacks.state import LONGEST, StateStack
from stacks.values import id_of

# Where the land job runs from time to time, what waits may be old, but not lost.
UNSTREAMED_AGE_S = int(LONGEST.to_seconds()) // 2
DEAD_LETTERS = "DeadLetters"  # how the ids of queues end that hold them
DEAD_LETTERS_OF = {
    "DeadLetters": "dead letters of the rendezvous",
    "SplittingDeadLetters": "dead letters of splitting",
    "FederationDeadLetters": "dead letters of federation",
    "FederationFifoDeadLetters": "dead letters of federation, FIFO",
}
LOOKED_AFTER_ELSEWHERE = frozenset({"FederationDeadLetters", "FederationFifoDeadLetters"})  # by their own stack
FAILED_RUNS = ["FAILED"]  # of EMR Serverless; a run that is cancelled was meant to be


class OperationsStack(Stack):
    """Stack `SluiceOperations`. `watched` are the stacks whose alarms get their actions here."""

    def __init__(
        self, scope: Construct, parameters: Parameters, *, state: StateStack, watched: Sequence[Stack]
    ) -> None:
        super().__init__(
            scope, staged("SluiceOperations", parameters.stage), description="Sluice: dashboard and alarms"
        )
        self.parameters = parameters
        self.options: OperationsParameters = parameters.operations
        self.state = state
        self.application = _application(watched)
        self.topic = _topic(self)
        is_local = parameters.architecture is Architecture.LOCAL
        for rule in _rules(self):
            # The embedded cloud refuses alarms of more than one metric, and budgets.
            if not is_local or isinstance(rule.metric, cloudwatch.Metric):
                alarm(self, rule)
        if not is_local:
            _budget(self)
        drawn = Watched(
            stage=parameters.stage,
            offers=state.offers_queue,
            sources=list(_sources(state)),
            dead_letters=list(_dead_letters(state)),
            split={each.parameters.queue_id: each for each in state.split_queues},
            main=None if state.pipeline is None else state.pipeline.main,
            application_id=None if self.application is None else self.application.attr_application_id,
            stacks=[each.stack_name for each in watched],
        )
        dashboard = draw(self, drawn)
        if self.topic is not None:
            _tell(self.topic, [self, *watched])
            _tell_of_runs(self, self.topic)
            CfnOutput(self, "AlarmTopicArn", value=self.topic.topic_arn)
        CfnOutput(self, "DashboardName", value=dashboard.dashboard_name)
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


def _budget(stack: OperationsStack) -> None:
    """Of the whole account: a budget by tag stays at zero until somebody activates the tag for billing.

    It is there too where nobody is to be told: the account's owner finds it among the account's budgets.
    """
    if stack.options.budget_usd is None:
        return
    budget = budgets.CfnBudget
    told = []
    if stack.topic is not None:
        told = [budget.SubscriberProperty(address=stack.topic.topic_arn, subscription_type="SNS")]
    budgets.CfnBudget(
        stack,
        "Budget",
        budget=budget.BudgetDataProperty(
            budget_type="COST",
            time_unit="MONTHLY",
            budget_limit=budget.SpendProperty(amount=stack.options.budget_usd, unit="USD"),
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
            for kind in ("ACTUAL", "FORECASTED")
            if told
        ],
    )


def _sources(state: StateStack) -> Iterator[WatchedQueue]:
    """List what our functions read, but for offers: whatever waits there for long isn't being looked after.

    A source whose consumers are re-pointed is theirs while nothing is split.
    """
    yield WatchedQueue("Control", state.control_queue, "requests about sessions")
    for queues in state.split_queues:
        told, reader = f"source of {queues.parameters.queue_id}", "function" if queues.main else "consumer"
        yield WatchedQueue(f"{queues.id}Source", queues.source, told, reader)
    yield WatchedQueue("Links", state.federation.links_queue, "what peers say")
    yield WatchedQueue("Ticks", state.federation.ticks_queue, "ticks of links")
    for ingress in state.federation.ingresses:
        of = ingress.exchange or ("of links" if ingress.from_links else "of publishers")
        yield WatchedQueue(ingress.id, ingress.queue, f"ingress {of}{', FIFO' if ingress.fifo else ''}")


def _dead_letters(state: StateStack) -> Iterator[WatchedQueue]:
    told = DEAD_LETTERS_OF | {
        f"{queues.id}{DEAD_LETTERS}": f"dead letters of {queues.parameters.queue_id}" for queues in state.split_queues
    }
    for child in state.node.children:
        if isinstance(child, sqs.Queue) and child.node.id.endswith(DEAD_LETTERS):
            yield WatchedQueue(child.node.id, child, told.get(child.node.id, child.node.id))


def _rules(stack: OperationsStack) -> Iterator[Rule]:
    """List all alarms of this stack."""
    state, options, stage = stack.state, stack.options, stack.parameters.stage
    yield from _age_rules(stack)
    # Queues of routes are made at run time. So the functions say how late their messages are, and what doesn't go.
    text = "Messages go over routes long after they came: `sluice status` shows which, and its queue"
    lag = ours("LagMs", "bridge", stage=stage, statistic="Maximum")
    yield Rule("BridgeLag", text, lag, threshold=options.bridge_lag_s * 1000, periods=3)
    text = "Routes carry nothing for a quarter of an hour: `sluice link list` says why"
    down = ours("RoutesDown", "links", stage=stage, statistic="Minimum")
    # Without a word from the function nobody looks after links.
    yield Rule("RoutesDown", text, down, threshold=1, periods=3, missing=cloudwatch.TreatMissingData.BREACHING)
    for queue in _dead_letters(state):
        if queue.name not in LOOKED_AFTER_ELSEWHERE:
            text = f"There are {queue.told}: their attribute sluice-reason says why"
            yield Rule(queue.name, text, of_queue(queue.queue, VISIBLE), threshold=options.dead_letters)
    text = "Too many offers find no proxy: `sluice rendezvous status` says who waits"
    denied = denied_percent(stage, least_offers=options.denied_least_offers)
    yield Rule("Denied", text, denied, threshold=options.denied_percent, periods=3)
    text = "Offers come too late to be answered: is the broker throttled, are its parameters too small for the load?"
    yield Rule(
        "Stale", text, ours(OfferMetric.STALE, "broker", stage=stage), threshold=options.denied_least_offers, periods=3
    )
    if state.pipeline is not None:
        text = "The land job couldn't delete messages that it has: they come again, and land once all the same"
        yield Rule("DeletionsFailed", text, deletions_failed(stage), threshold=1)


def _age_rules(stack: OperationsStack) -> Iterator[Rule]:
    """Watch for what waits for longer than it should, for five minutes on end."""
    options, state = stack.options, stack.state

    def rule(name: str, queue: sqs.IQueue | str, threshold_s: int, text: str, *, minutes: int = 5) -> Rule:
        return Rule(f"{name}Age", text, of_queue(queue, AGE, period=Duration.minutes(1)), threshold_s, minutes)

    late = "Offers wait for the broker longer than their clients do: is it throttled, does it fail?"
    yield rule("Offers", state.offers_queue, options.offers_age_s, late, minutes=3)
    for queue in _sources(state):
        text = f"Queue {queue.told}: messages wait for their {queue.reader}: is it throttled, does it fail?"
        yield rule(queue.name, queue.queue, options.queue_age_s, text)
    if state.pipeline is not None:
        text = "Messages wait for the land job: `sluice pipeline status` says whether it runs"
        threshold_s = options.pipeline_age_s if stack.parameters.pipeline.streaming else UNSTREAMED_AGE_S
        yield rule("Pipeline", state.pipeline.main, threshold_s, text)
    for route, made in _declared_queues(stack):
        text = f"Messages wait for route {route}: `sluice route status` says why"
        yield rule(id_of("Route", route), made, options.bridge_lag_s, text)


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


def _tell(topic: sns.ITopic, stacks: Sequence[Stack]) -> None:
    """Every alarm there is says when something is wrong, and when it is over."""
    action = actions.SnsAction(topic)
    for stack in stacks:
        for construct in stack.node.find_all():
            if isinstance(construct, cloudwatch.Alarm):
                construct.add_alarm_action(action)
                construct.add_ok_action(action)


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
