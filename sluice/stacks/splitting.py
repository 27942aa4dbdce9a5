"""Splitting: the splitter in the path of every queue that can be split, and the control function for sessions.

Every role's statements stand here, but for those about consumers, in `stacks.repointing`: nothing is granted by a
construct on the side.
"""

from collections.abc import Mapping

from aws_cdk import CfnOutput
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct
from msgspec import structs, to_builtins

from sluice.splitting.adoption import CONSUMED, DECRYPTED, DESCRIBED
from sluice.splitting.operations import SweepQueues
from sluice.splitting.sessions.temporary_queues import PREFIX as TEMPORARY_PREFIX
from sluice.splitting.settings import ControlSettings, Repointed, SplitConfig, SplitterSettings
from sluice.stacks import repointing
from sluice.stacks.alarms import Capability, WatchedStack
from sluice.stacks.bundles.assets import Assets
from sluice.stacks.consumers import KubernetesParameters, targets_of
from sluice.stacks.functions import (
    CONSUME_ACTIONS,
    SMALL_BATCH,
    Functions,
    Plan,
    allow,
    every_minute,
    queue_arn,
    trigger,
)
from sluice.stacks.parameters import Parameters
from sluice.stacks.state import CONTROL_TIMEOUT, SPLITTER_TIMEOUT, StateStack
from sluice.stages import staged

# With which a session's queue is made, looked at, emptied and deleted.
TEMPORARY_ACTIONS = (
    "CreateQueue",
    "TagQueue",
    "GetQueueAttributes",
    "ReceiveMessage",
    "DeleteMessage",
    "DeleteQueue",
)


class SplittingStack(WatchedStack):
    """Stack `SluiceSplitting`."""

    capability = Capability.SPLITTING
    watched_by_age = frozenset({"Splitter"})

    def __init__(self, scope: Construct, parameters: Parameters, *, state: StateStack, assets: Assets) -> None:
        super().__init__(
            scope, staged("SluiceSplitting", parameters.stage), description="Sluice: sessions that share queues"
        )
        self.state = state
        self.parameters = parameters
        self.temporary_prefix = staged(TEMPORARY_PREFIX, parameters.stage)
        self.temporary_queues = queue_arn(self, f"{self.temporary_prefix}*")
        self.functions = Functions.of(self, parameters, assets, extras=["functions", "splitter"])
        splitter, triggers = _splitter(self)
        control = _control(self, triggers)
        CfnOutput(self, "ControlFunctionName", value=control.function_name)
        if control.role is not None and _signs_in(parameters):  # clusters have to know who does
            CfnOutput(self, "ControlRoleArn", value=control.role.role_arn)
        CfnOutput(self, "SplitterLogGroupName", value=splitter.log_group.log_group_name)
        CfnOutput(self, "SplittingTableName", value=state.splitting_table.table_name)
        CfnOutput(self, "SplittingDeadLettersUrl", value=state.splitting_dead_letters.queue_url)


def _signs_in(parameters: Parameters) -> bool:
    consumers = [each for queue in parameters.splitting.queues for each in queue.consumers]
    return any(isinstance(each, KubernetesParameters) and not each.agent for each in consumers)


def _splitter(stack: SplittingStack) -> tuple[lambda_.Function, Mapping[str, lambda_.EventSourceMapping]]:
    """Make the splitter, and its triggers by the ids of their queues."""
    parameters = stack.parameters.splitting
    function = stack.functions.make(
        Plan(
            name="splitter",
            timeout=SPLITTER_TIMEOUT,
            memory_mb=parameters.splitter_memory_mb,
            settings=_settings(stack),
            run_time_queues=[stack.temporary_prefix],
            wildcards={f"{arn}/*": "S3 events name objects; any of the bucket." for arn in parameters.s3_bucket_arns},
            allowed=_splitter_statements(stack),
        )
    )
    triggers = {}
    for queues in stack.state.split_queues:
        fifo, most = queues.parameters.fifo, parameters.batch_size
        triggers[queues.parameters.queue_id] = trigger(
            queues.id,
            function,
            queues.source,
            batch=min(most, SMALL_BATCH) if fifo else most,
            window_s=None if fifo else parameters.batching_window_s,
            concurrency=parameters.max_concurrency,
            enabled=not queues.parameters.consumers,  # else control switches it on
        )
    return function, triggers


def _splitter_statements(stack: SplittingStack) -> list[iam.PolicyStatement]:
    state, parameters = stack.state, stack.parameters.splitting
    sources = [queues.source.queue_arn for queues in state.split_queues]
    mains = [queues.main.queue_arn for queues in state.split_queues if queues.main is not None]
    dead_letters = state.splitting_dead_letters.queue_arn
    statements = [
        allow("dynamodb", ["GetItem", "Query", "PutItem", "UpdateItem"], state.splitting_table.table_arn),
        allow("sqs", ["SendMessage"], *mains, stack.temporary_queues, state.control_queue.queue_arn, dead_letters),
        *_kms(stack),
    ]
    if sources:
        statements.append(allow("sqs", CONSUMED, *sources))
    if parameters.s3_bucket_arns:
        statements.append(allow("s3", ["GetObject"], *(f"{arn}/*" for arn in parameters.s3_bucket_arns)))
    return statements


def _control(stack: SplittingStack, triggers: Mapping[str, lambda_.EventSourceMapping]) -> lambda_.Function:
    state, parameters = stack.state, stack.parameters.splitting
    repointed = {queue.queue_id: queue.consumers for queue in parameters.queues if queue.consumers}
    consumers = [each for of_queue in repointed.values() for each in of_queue]
    about_consumers = repointing.statements(stack, consumers, [triggers[queue_id] for queue_id in repointed])
    function = stack.functions.make(
        Plan(
            name="control",
            timeout=CONTROL_TIMEOUT,
            memory_mb=parameters.control_memory_mb,
            settings=ControlSettings(
                **structs.asdict(_settings(stack)),
                counts_settle_s=parameters.counts_settle_s,
                stage=stack.parameters.stage,
                repointed=tuple(
                    Repointed(
                        queue_id=queue_id,
                        trigger_id=triggers[queue_id].event_source_mapping_id,
                        targets=targets_of(of_queue),
                    )
                    for queue_id, of_queue in repointed.items()
                ),
                policies=tuple(policy.policy for policy in parameters.policies),
            ),
            run_time_queues=[stack.temporary_prefix],
            wildcards={"*": "ListQueues takes no resource; the sweep of queues that nobody owns needs it."}
            | repointing.wildcards(consumers),
            allowed=[*_control_statements(stack), *about_consumers],
            failures=state.splitting_dead_letters,
            # A tick arms the next one while sessions live. Lambda would take that for a runaway loop:
            # https://docs.aws.amazon.com/lambda/latest/dg/invocation-recursion.html
            recursive_loop=lambda_.RecursiveLoop.ALLOW,
        )
    )
    trigger("Control", function, state.control_queue, concurrency=None)
    every_minute(function, to_builtins(SweepQueues()))
    return function


def _control_statements(stack: SplittingStack) -> list[iam.PolicyStatement]:
    state = stack.state
    sources = [queues.source.queue_arn for queues in state.split_queues]
    # Where leftovers go: without a main queue to a temporary one, and what is left there to the source.
    homes = [(queues.main or queues.source).queue_arn for queues in state.split_queues]
    if any(queues.main is None for queues in state.split_queues):
        homes.append(stack.temporary_queues)
    table_actions = ["GetItem", "Query", "PutItem", "UpdateItem", "DeleteItem"]
    statements = [
        allow("dynamodb", table_actions, state.splitting_table.table_arn),
        allow("sqs", TEMPORARY_ACTIONS, stack.temporary_queues),
        allow("sqs", ["SendMessage"], *homes, state.control_queue.queue_arn, state.splitting_dead_letters.queue_arn),
        allow("sqs", CONSUME_ACTIONS, state.control_queue.queue_arn),
        # It takes no resource: https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonsqs.html
        allow("sqs", ["ListQueues"], "*"),
        *_kms(stack),
    ]
    if sources:
        statements.append(allow("sqs", DESCRIBED, *sources))
    return statements


def _kms(stack: SplittingStack) -> list[iam.PolicyStatement]:
    keys = stack.parameters.splitting.kms_key_arns
    return [allow("kms", DECRYPTED, *keys)] if keys else []


def _settings(stack: SplittingStack) -> SplitterSettings:
    """Tell what both functions are told."""
    state = stack.state
    return SplitterSettings(
        table=state.splitting_table.table_name,
        dead_letters_url=state.splitting_dead_letters.queue_url,
        control_queue_url=state.control_queue.queue_url,
        split_queues=tuple(
            SplitConfig(
                queue_id=queues.parameters.queue_id,
                source=queues.source.queue_name,
                main=None if queues.main is None else queues.main.queue_name,
                sns=queues.parameters.sns,
                s3_event=queues.parameters.s3_event,
                drain_timeout_s=queues.parameters.drain_timeout_s,
                tags=queues.parameters.tags,
            )
            for queues in state.split_queues
        ),
    )
