"""Operations: what people look at, and what calls them. One dashboard, alarms, and the topic that alarms go to.

A stack that makes something to be watched may have alarms of its own; here are those about what lies between stacks,
and here all of them get their actions. What is drawn is in `stacks.dashboard`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import Aws, CfnOutput, Duration, Stack
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
from sluice.federation.links.links import Bridge
from stacks.dashboard import AGE, VISIBLE, Watched, WatchedQueue, deletions_failed, denied_percent, draw, of_queue, ours
from stacks.parameters import Architecture, OperationsParameters, Parameters
from stacks.state import SPLIT_RETENTION, Ingress, StateStack

# Where the land job runs from time to time, what waits may be old, but not lost.
UNSTREAMED_AGE_S = int(SPLIT_RETENTION.to_seconds()) // 2
DEAD_LETTERS = "DeadLetters"  # how the ids of queues end that hold them
DEAD_LETTERS_OF = {
    "DeadLetters": "dead letters of the rendezvous",
    "SplittingDeadLetters": "dead letters of splitting",
    "FederationDeadLetters": "dead letters of federation",
    "FederationFifoDeadLetters": "dead letters of federation, FIFO",
}
LOOKED_AFTER_ELSEWHERE = frozenset({"FederationDeadLetters", "FederationFifoDeadLetters"})  # by their own stack
FAILED_RUNS = ["FAILED"]  # of EMR Serverless; a run that is cancelled was meant to be


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When an alarm goes off: a number for so many periods, one after the other."""

    text: str  # what is wrong, and what to do
    metric: cloudwatch.IMetric
    threshold: float
    periods: int = 1
    missing: cloudwatch.TreatMissingData = cloudwatch.TreatMissingData.NOT_BREACHING


class OperationsStack(Stack):
    """Stack `SluiceOperations`. `watched` are the stacks whose alarms get their actions here."""

    def __init__(
        self, scope: Construct, parameters: Parameters, *, state: StateStack, watched: Sequence[Stack]
    ) -> None:
        super().__init__(scope, "SluiceOperations", description="Sluice: dashboard and alarms")
        self.parameters = parameters
        self.options: OperationsParameters = parameters.operations
        self.state = state
        self.application = _application(watched)
        self.topic = _topic(self)
        for name, rule in _rules(self):
            if _can_be(rule, parameters.architecture):
                _alarm(self, name, rule)
        dashboard = draw(self, _watched(self, [each.stack_name for each in watched]))
        if self.topic is not None:
            _tell(self.topic, [self, *watched])
            _tell_of_runs(self, self.topic)
            CfnOutput(self, "AlarmTopicArn", value=self.topic.topic_arn)
        CfnOutput(self, "DashboardName", value=dashboard.dashboard_name)
        urls = {each.told: each.queue.queue_url for each in _dead_letters(state)}
        CfnOutput(self, "DeadLetterUrls", value=self.to_json_string(urls))


def _application(watched: Sequence[Stack]) -> emr.CfnApplication | None:
    """What jobs run on, where that is EMR Serverless."""
    children = (child for stack in watched for child in stack.node.children)
    return next((child for child in children if isinstance(child, emr.CfnApplication)), None)


def _topic(stack: OperationsStack) -> sns.ITopic | None:
    """The topic that is given, or one for the address that is given; None where nobody is to be told.

    Ours is in the stack that is kept: an address has to confirm its subscription by hand, and alarms of all stacks
    refer to it.
    """
    options = stack.options
    if options.alarm_topic_arn is not None:
        return sns.Topic.from_topic_arn(stack, "Topic", options.alarm_topic_arn)
    if options.alarm_email is None:
        return None
    topic = sns.Topic(stack.state, "Alarms", display_name="Sluice", enforce_ssl=True)
    topic.add_subscription(subscriptions.EmailSubscription(options.alarm_email))
    # A topic with a policy has no longer the one by which its own account's alarms may publish.
    topic.add_to_resource_policy(
        iam.PolicyStatement(
            actions=["sns:Publish"],
            resources=[topic.topic_arn],
            principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
            conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
        )
    )
    return topic


def _watched(stack: OperationsStack, stacks: Sequence[str]) -> Watched:
    state = stack.state
    return Watched(
        offers=state.offers_queue,
        sources=list(_sources(state)),
        dead_letters=list(_dead_letters(state)),
        split={each.parameters.queue_id: each for each in state.split_queues},
        main=None if state.pipeline is None else state.pipeline.queues.main,
        application_id=None if stack.application is None else stack.application.attr_application_id,
        stacks=stacks,
    )


def _sources(state: StateStack) -> Iterator[WatchedQueue]:
    """What our functions read, but for the offers: whatever waits there for long isn't being looked after."""
    yield WatchedQueue("Timeouts", state.timeouts_queue, "time-outs")
    if state.counters_queue is not None:
        yield WatchedQueue("Counters", state.counters_queue, "counters")
    yield WatchedQueue("Control", state.control_queue, "requests about sessions")
    for number, queues in enumerate(state.split_queues):
        yield WatchedQueue(f"Split{number}Source", queues.source, f"source of {queues.parameters.queue_id}")
    yield WatchedQueue("Links", state.federation.links_queue, "what peers say")
    yield WatchedQueue("Ticks", state.federation.ticks_queue, "ticks of links")
    for number, ingress in enumerate(state.federation.ingresses):
        yield WatchedQueue(f"Ingress{number}", ingress.queue, f"ingress {_described(ingress)}")


def _described(ingress: Ingress) -> str:
    from_where = ingress.exchange or ("of links" if ingress.from_links else "of publishers")
    return f"{from_where}, FIFO" if ingress.fifo else from_where


def _dead_letters(state: StateStack) -> Iterator[WatchedQueue]:
    told = DEAD_LETTERS_OF | {
        f"Split{number}{DEAD_LETTERS}": f"dead letters of {queues.parameters.queue_id}"
        for number, queues in enumerate(state.split_queues)
    }
    for child in state.node.children:
        if isinstance(child, sqs.Queue) and child.node.id.endswith(DEAD_LETTERS):
            yield WatchedQueue(child.node.id, child, told.get(child.node.id, child.node.id))


def _rules(stack: OperationsStack) -> Iterator[tuple[str, Rule]]:
    """All alarms of this stack, by the names that their ids have."""
    yield from _age_rules(stack)
    yield from _bridge_rules(stack)
    for queue in _dead_letters(stack.state):
        if queue.name not in LOOKED_AFTER_ELSEWHERE:
            text = f"There are {queue.told}: their attribute sluice-reason says why"
            visible = of_queue(queue.queue, VISIBLE)
            yield queue.name, Rule(text=text, metric=visible, threshold=stack.options.dead_letters)
    yield (
        "Denied",
        Rule(
            text="Too many offers find no proxy: `sluice rendezvous status` says who waits",
            metric=denied_percent(least_offers=stack.options.denied_least_offers),
            threshold=stack.options.denied_percent,
            periods=3,
        ),
    )
    if stack.state.pipeline is not None:
        text = "The land job couldn't delete messages that it has: they come again, and land once all the same"
        yield "DeletionsFailed", Rule(text=text, metric=deletions_failed(), threshold=1)


def _can_be(rule: Rule, architecture: Architecture) -> bool:
    """The embedded cloud refuses alarms of more than one metric."""
    return architecture is not Architecture.LOCAL or not isinstance(rule.metric, cloudwatch.MathExpression)


def _age_rules(stack: OperationsStack) -> Iterator[tuple[str, Rule]]:
    """What waits for longer than it should, for five minutes on end."""
    options, state = stack.options, stack.state

    def rule(queue: sqs.IQueue, threshold_s: int, text: str, *, minutes: int = 5) -> Rule:
        age = of_queue(queue, AGE, period=Duration.minutes(1))
        return Rule(text=text, metric=age, threshold=threshold_s, periods=minutes)

    late = "Offers wait for the broker longer than their clients do: is it throttled, does it fail?"
    yield "OffersAge", rule(state.offers_queue, options.offers_age_s, late, minutes=3)
    for queue in _sources(state):
        text = f"Queue {queue.told}: messages wait for their function: is it throttled, does it fail?"
        yield f"{queue.name}Age", rule(queue.queue, options.queue_age_s, text)
    if state.pipeline is not None:
        text = "Messages wait for the land job: `sluice pipeline status` says whether it runs"
        threshold_s = options.pipeline_age_s if stack.parameters.pipeline.streaming else UNSTREAMED_AGE_S
        yield "PipelineAge", rule(state.pipeline.queues.main, threshold_s, text)


def _bridge_rules(stack: OperationsStack) -> Iterator[tuple[str, Rule]]:
    """Queues of routes are made at run time. So the functions say how late their messages are, and what doesn't go.

    Where a declared route's queue is known now, it has an alarm of its own beside.
    """
    lag_ms = stack.options.bridge_lag_s * 1000
    yield (
        "BridgeLag",
        Rule(
            text="Messages go over routes long after they came: `sluice status` shows which, and its queue",
            metric=ours("LagMs", "bridge", statistic="Maximum"),
            threshold=lag_ms,
            periods=3,
        ),
    )
    yield (
        "RoutesDown",
        Rule(
            text="Routes carry nothing for a quarter of an hour: `sluice link list` says why",
            metric=ours("RoutesDown", "links", statistic="Minimum"),
            threshold=1,
            periods=3,
            # Without a word from the function nobody looks after links.
            missing=cloudwatch.TreatMissingData.BREACHING,
        ),
    )
    for number, (route, metric) in enumerate(_declared_queues(stack)):
        text = f"Messages wait for route {route}: `sluice route status` says why"
        yield f"Route{number}Age", Rule(text=text, metric=metric, threshold=stack.options.bridge_lag_s, periods=5)


def _declared_queues(stack: OperationsStack) -> Iterator[tuple[str, cloudwatch.Metric]]:
    """The queues of declared routes that begin here, by the routes' names, as far as their names are known now."""
    tag, bound = stack.parameters.federation.tag, stack.state.federation.bound
    for route in stack.parameters.declared.routes:
        queue = _declared_queue(route, tag=tag, bound=bound)
        if queue is not None:
            yield route.name, of_queue(queue, AGE, period=Duration.minutes(1))


def _declared_queue(route: Bridge, *, tag: str | None, bound: Mapping[str, sqs.IQueue]) -> sqs.IQueue | str | None:
    if not route.src_is_local:
        return None  # it begins at the peer
    given = route.src if route.src_is_queue else route.queue
    if given is not None:
        return bound.get(given, given)
    # Without a tag of its own the site is called by its region and account, which a synth doesn't know.
    return None if tag is None else bridge_queue_name(tag, route)


def _alarm(stack: OperationsStack, name: str, rule: Rule) -> cloudwatch.Alarm:
    return cloudwatch.Alarm(
        stack,
        f"{name}Alarm",
        alarm_description=rule.text,
        metric=rule.metric,
        threshold=rule.threshold,
        evaluation_periods=rule.periods,
        comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
        treat_missing_data=rule.missing,
    )


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
        targets=[targets.SnsTopic(topic)],
    )
