"""Creates splitting: queues that sessions share, the splitter that reads each source queue, and the control function.

This module has the roles' permissions, except to re-point consumers: see `sluice.constructs.repointing`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Unpack

from aws_cdk import Aws, Duration, Token
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct
from msgspec import structs, to_builtins
from pydantic import ValidationError

from sluice.building.project import PROJECT
from sluice.bundles.assets import Assets
from sluice.codec import pick_shared_fields
from sluice.constructs import repointing, storage
from sluice.constructs.alarms import Capability, build_metric
from sluice.constructs.arguments import SiteProps, check_arguments
from sluice.constructs.functions import (
    AT_RUN_TIME,
    CONSUME_ACTIONS,
    Functions,
    create_reader_alias,
    format_queue_arn,
    invoke_every_minute,
    trigger,
)
from sluice.constructs.references import import_into
from sluice.constructs.roles import Statement, allow
from sluice.constructs.site_construct import NOTHING, SiteConstruct, StackOutput, parse_parameters
from sluice.errors import BadConfiguration
from sluice.parameters import Parameters
from sluice.parameters.consumers import KubernetesParameters, to_targets
from sluice.parameters.event_sources import Reading
from sluice.parameters.splitting import SplitQueueParameters, SplittingParameters
from sluice.parameters.values import add_queue_type, construct_id
from sluice.splitting.adoption import CONSUMED, DECRYPTED, DESCRIBED, SPLITTER_TIMEOUT_S
from sluice.splitting.consumers.temporary_queues import PREFIX as TEMPORARY_PREFIX
from sluice.splitting.filters.texts import Envelope
from sluice.splitting.operations import SweepQueues
from sluice.splitting.settings import ControlSettings, Repointed, SplitConfig, SplitterSettings
from sluice.stages import add_stage_prefix

SPLITTER_TIMEOUT = Duration.seconds(SPLITTER_TIMEOUT_S)
CONTROL_TIMEOUT = Duration.seconds(60)
UNKNOWN_ARN = "arn:aws:sqs:us-east-1:000000000000:unknown-"  # The construct's address follows this prefix.
# These actions create, describe, drain and delete a session's queue.
TEMPORARY_ACTIONS = ("CreateQueue", "TagQueue", "GetQueueAttributes", "ReceiveMessage", "DeleteMessage", "DeleteQueue")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitQueues:
    """The source and main queue of a split queue, each created here or existing.

    The ids of the queues' constructs begin with `id`. `main` is None if consumers are re-pointed. `dead_letters` is
    None unless a FIFO queue has its own dead-letter queue.
    """

    id: str
    parameters: SplitQueueParameters
    source: sqs.IQueue
    main: sqs.IQueue | None
    dead_letters: sqs.IQueue | None = None

    @classmethod
    def create(
        cls,
        scope: Construct,
        queue: SplitQueueParameters,
        parameters: Parameters,
        *,
        dead_letters: sqs.IQueue,
        source: sqs.IQueue | None = None,
        main: sqs.IQueue | None = None,
    ) -> "SplitQueues":
        """Create missing queues in `scope`. Existing queues are given as constructs or by their ARNs."""
        named, keep = (
            construct_id("Split", add_queue_type(queue.queue_id, fifo=queue.fifo)),
            parameters.rendezvous.keep_state,
        )
        if source is None and queue.existing_source_queue_arn is not None:
            source = sqs.Queue.from_queue_arn(scope, f"{named}Source", queue.existing_source_queue_arn)
        if main is None and queue.existing_main_queue_arn is not None:
            main = sqs.Queue.from_queue_arn(scope, f"{named}Main", queue.existing_main_queue_arn)
        own_dead_letters = None
        if queue.fifo and (source is None or (main is None and not queue.consumers)):
            own_dead_letters = storage.create_queue(scope, f"{named}DeadLetters", keep=keep, fifo=True)

        def create_queue(role: str) -> sqs.Queue:
            return storage.create_queue(
                scope,
                f"{named}{role}",
                dead_letters=own_dead_letters or dead_letters,
                visibility=storage.visibility_timeout(
                    SPLITTER_TIMEOUT, parameters.splitting.reading(queue).window_s or 0
                ),
                fifo=queue.fifo,
                per_group=queue.fifo,
                keep=keep,
            )

        if source is None:
            source = create_queue("Source")
        for sender in queue.sender_arns:  # Senders are SNS topics, and S3 buckets of this account.
            service = sender.split(":")[2]
            conditions = {"ArnEquals": {"aws:SourceArn": sender}}
            if service == "s3":  # A bucket's ARN doesn't contain its account.
                conditions["StringEquals"] = {"aws:SourceAccount": Aws.ACCOUNT_ID}
            source.add_to_resource_policy(
                iam.PolicyStatement(
                    principals=[iam.ServicePrincipal(f"{service}.amazonaws.com")],
                    actions=["sqs:SendMessage"],
                    resources=[source.queue_arn],
                    conditions=conditions,
                )
            )
        if main is None and not queue.consumers:
            main = create_queue("Main")
        return cls(id=named, parameters=queue, source=source, main=main, dead_letters=own_dead_letters)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplittingState:
    """Resources that outlive splitting's functions: registry table, dead-letter queue, queue between functions."""

    table: dynamodb.ITable
    dead_letters: sqs.IQueue
    control_queue: sqs.IQueue
    queues: list[SplitQueues] = field(default_factory=list)

    @classmethod
    def create(cls, scope: Construct, parameters: Parameters) -> "SplittingState":
        """Create the resources in `scope`, with the queues that the parameters list."""
        keep = parameters.rendezvous.keep_state
        table = storage.create_table(scope, "SplittingTable", keep=keep)
        dead_letters = storage.create_queue(scope, "SplittingDeadLetters", keep=keep)
        control_queue = storage.create_queue(
            scope,
            "ControlQueue",
            dead_letters=dead_letters,
            max_receives=storage.FEW_RECEIVES,
            visibility=storage.visibility_timeout(CONTROL_TIMEOUT),
            retention=storage.TICKS_RETENTION,
        )
        queues = [
            SplitQueues.create(scope, queue, parameters, dead_letters=dead_letters)
            for queue in parameters.splitting.queues
        ]
        return cls(table=table, dead_letters=dead_letters, control_queue=control_queue, queues=queues)


@check_arguments
class Splitting(SiteConstruct):
    """The functions for all split queues of a site.

    Only one such construct is allowed per stage, account and region. `parameters` are those of section `splitting`.
    `SplitQueue` adds queues until the app is synthesized. Raises `BadConfiguration`, with the construct's path.
    """

    capability = Capability.SPLITTING
    stack_name: ClassVar[str] = "SluiceSplitting"
    watched_by_age = frozenset({"Splitter"})

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        state: SplittingState | None = None,
        parameters: Mapping[str, object] | Parameters = NOTHING,
        assets: Assets | None = None,
        **props: Unpack[SiteProps],
    ) -> None:
        """Create all resources of splitting, and also the state unless another stack's `state` is given."""
        if not isinstance(parameters, Parameters):
            parameters = {"queues": (), **parameters}
        super().__init__(scope, id_, "splitting", parameters, props)
        self.state = import_into(self, state or SplittingState.create(self, self.parameters))
        self.assets = assets or Assets(PROJECT)
        self.key_arns = list(self.parameters.splitting.kms_key_arns)
        temporary_queues = f"{add_stage_prefix(TEMPORARY_PREFIX, self.parameters.stage)}*"
        self.temporary_queues = format_queue_arn(self.stack, temporary_queues)

    @property
    def queues(self) -> Sequence[SplitQueues]:
        """The split queues, in the order of their addition."""
        return self.state.queues

    def add(self, queues: SplitQueues) -> None:
        """Add a queue for the splitter to read. Raises `BadConfiguration` if it conflicts with another queue."""
        self._check_not_finished()
        listed = (*(queue.parameters for queue in self.queues), queues.parameters)
        try:
            SplittingParameters(**{**dict(self.parameters.splitting), "queues": listed})
        except ValidationError as error:
            raise BadConfiguration(f"{self.node.path}: {error.errors()[0]['msg']}") from error
        self.state.queues.append(queues)
        for queue in (queues.source, queues.main):
            key = None if queue is None else queue.encryption_master_key
            if key is not None and key.key_arn not in self.key_arns:
                self.key_arns.append(key.key_arn)

    def metric(
        self, name: str, *, service: str = "splitter", queue_id: str | None = None, statistic: str = "Sum"
    ) -> cloudwatch.Metric:
        """Return a metric of splitting, for one queue if `queue_id` is given. docs/operations.md lists the names."""
        dimensions = {} if queue_id is None else {"queue": queue_id}
        return build_metric(name, service, stage=self.parameters.stage, statistic=statistic, dimensions=dimensions)

    def _finish(self) -> None:
        self.functions = Functions.create(self, self.assets, extras=["functions", "splitter"])
        splitter, triggers = _create_splitter(self)
        control = _create_control(self, triggers)
        outputs = [StackOutput(name="ControlFunctionName", value=control.function_name)]
        consumers = [consumer for queue in self.queues for consumer in queue.parameters.consumers]
        in_clusters = any(isinstance(consumer, KubernetesParameters) and not consumer.agent for consumer in consumers)
        if control.role is not None and in_clusters:  # Access entries of EKS clusters need the role.
            outputs.append(StackOutput(name="ControlRoleArn", value=control.role.role_arn))
        outputs += [
            StackOutput(name="SplitterLogGroupName", value=splitter.log_group.log_group_name),
            StackOutput(name="SplittingTableName", value=self.state.table.table_name),
            StackOutput(name="SplittingDeadLettersUrl", value=self.state.dead_letters.queue_url),
        ]
        self.home.publish(self, outputs)


@check_arguments
class SplitQueue(Construct):
    """One queue that sessions can share: producers send to its source, the deployed consumer reads its main queue.

    `source_queue` and `main_queue` are existing queues; without them, queues are created. Only the splitter may read an
    existing source queue. All split queues of a site share one `splitting`. If it is not given, one is created here;
    pass it to the next split queue. `parameters` are the other parameters of an entry of `splitting.queues`; with
    `consumers` there is no main queue. Raises `BadConfiguration`, with the construct's path.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        queue_id: str,
        source_queue: sqs.IQueue | None = None,
        main_queue: sqs.IQueue | None = None,
        fifo: bool | None = None,
        splitting: Splitting | None = None,
        parameters: Mapping[str, object] = NOTHING,
        **props: Unpack[SiteProps],
    ) -> None:
        """Create the queues. `fifo` defaults to the type of existing queues. `props` configure a new `Splitting`."""
        super().__init__(scope, id_)
        if splitting is not None and props:
            raise BadConfiguration(f"{self.node.path}: {', '.join(props)} can only be set where splitting is created")
        queues = [queue for queue in (source_queue, main_queue) if queue is not None]
        kinds = {queue.fifo for queue in queues} | (set() if fifo is None else {fifo})
        if len(kinds) > 1:
            raise BadConfiguration(f"{self.node.path}: all queues and fifo must be of one type, FIFO or standard")
        entry = {"queue_id": queue_id, "fifo": bool(kinds) and kinds.pop()}
        entry |= _build_existing_queue_field("source", source_queue) | _build_existing_queue_field("main", main_queue)
        if both := entry.keys() & parameters:
            raise BadConfiguration(f"{self.node.path}: {', '.join(both)} is an argument, so it can't be in parameters")
        section = {"queues": [{**entry, **parameters}]}
        own = parse_parameters(self, "splitting", section, props)
        storage.encrypt_resources(self, (splitting.parameters if splitting else own).kms_key_arn)
        self.splitting = splitting or Splitting(self, "Splitting", **props)
        self.queues = SplitQueues.create(
            self,
            own.splitting.queues[0],
            self.splitting.parameters,
            dead_letters=self.splitting.state.dead_letters,
            source=source_queue,
            main=main_queue,
        )
        self.splitting.add(self.queues)

    @property
    def queue_id(self) -> str:
        """The split queue's name in commands and bindings."""
        return self.queues.parameters.queue_id

    @property
    def source_queue(self) -> sqs.IQueue:
        """The queue to which producers send."""
        return self.queues.source

    @property
    def main_queue(self) -> sqs.IQueue | None:
        """The queue that the deployed consumer reads; None for re-pointed consumers, which read the source queue."""
        return self.queues.main

    def grant_send(self, grantee: iam.IGrantable) -> iam.Grant:
        """Allow a producer to send to the source queue."""
        return self.source_queue.grant_send_messages(grantee)

    def grant_consume(self, grantee: iam.IGrantable) -> iam.Grant:
        """Allow the deployed consumer to read the messages that no session takes."""
        return (self.main_queue or self.source_queue).grant_consume_messages(grantee)

    def metric(self, name: str, *, statistic: str = "Sum") -> cloudwatch.Metric:
        """Return a metric of the splitter about this queue, such as `MessagesForwarded`: see docs/operations.md."""
        return self.splitting.metric(name, queue_id=self.queue_id, statistic=statistic)


def _build_existing_queue_field(role: str, queue: sqs.IQueue | None) -> dict[str, object]:
    """Return the parameter that marks a queue as existing, with a placeholder for an ARN unknown at synthesis."""
    if queue is None:
        return {}
    arn = f"{UNKNOWN_ARN}{queue.node.addr}" + (".fifo" if queue.fifo else "")
    return {f"existing_{role}_queue_arn": arn if Token.is_unresolved(queue.queue_arn) else queue.queue_arn}


def _create_splitter(construct: Splitting) -> tuple[lambda_.Function, Mapping[str, lambda_.EventSourceMapping]]:
    """Create the splitter function. Returns the function, and its triggers by queue id."""
    state, parameters = construct.state, construct.parameters.splitting
    sources = [queues.source.queue_arn for queues in construct.queues]
    mains = [queues.main.queue_arn for queues in construct.queues if queues.main is not None]
    sent_to = [*mains, construct.temporary_queues, state.control_queue.queue_arn, state.dead_letters.queue_arn]
    allowed = [
        allow("dynamodb", ["GetItem", "Query", "PutItem", "UpdateItem"], state.table.table_arn),
        allow("sqs", ["SendMessage"], *sent_to, wildcards=AT_RUN_TIME),
        *_build_key_statements(construct),
    ]
    if sources:
        allowed.append(allow("sqs", CONSUMED, *sources))
    if parameters.s3_bucket_arns:
        objects = [f"{arn}/*" for arn in parameters.s3_bucket_arns]
        allowed.append(allow("s3", ["GetObject"], *objects, wildcards="S3 events name objects; any of the bucket."))
    function = construct.functions.create_function(
        "splitter",
        timeout=SPLITTER_TIMEOUT,
        memory_mb=parameters.splitter_memory_mb,
        settings=_build_splitter_settings(construct),
        allowed=allowed,
        may_recur=True,  # Consumers may send a message back to the source queue any number of times.
        is_called_often=True,
    )
    triggers = {}
    for queues in construct.queues:
        triggers[queues.parameters.queue_id] = trigger(
            queues.id,
            function,
            queues.source,
            reading=parameters.reading(queues.parameters),
            enabled=not queues.parameters.consumers,  # The control function enables triggers of re-pointed queues.
        )
    return function, triggers


def _create_control(construct: Splitting, triggers: Mapping[str, lambda_.EventSourceMapping]) -> lambda_.Function:
    state, parameters = construct.state, construct.parameters.splitting
    repointed = {
        queues.parameters.queue_id: queues.parameters.consumers
        for queues in construct.queues
        if queues.parameters.consumers
    }
    consumers = [consumer for queue_consumers in repointed.values() for consumer in queue_consumers]
    about_consumers = repointing.list_statements(
        construct.stack, consumers, [triggers[queue_id] for queue_id in repointed]
    )
    function = construct.functions.create_function(
        "control",
        timeout=CONTROL_TIMEOUT,
        memory_mb=parameters.control_memory_mb,
        settings=ControlSettings(
            **structs.asdict(_build_splitter_settings(construct))
            | pick_shared_fields(parameters, ControlSettings)
            | {
                "stage": construct.parameters.stage,
                "repointed": tuple(
                    Repointed(
                        queue_id=queue_id,
                        trigger_id=triggers[queue_id].event_source_mapping_id,
                        targets=to_targets(queue_consumers),
                    )
                    for queue_id, queue_consumers in repointed.items()
                ),
                "policies": tuple(policy.policy for policy in parameters.policies),
            }
        ),
        allowed=[*_build_control_statements(construct), *about_consumers],
        failures=state.dead_letters,
        may_recur=True,  # While sessions live, each tick sends the next tick.
    )
    trigger("Control", function, state.control_queue, reading=Reading())
    invoke_every_minute(function, to_builtins(SweepQueues()))
    create_reader_alias(function)
    return function


def _build_control_statements(construct: Splitting) -> list[Statement]:
    state = construct.state
    sources = [queues.source.queue_arn for queues in construct.queues]
    # A session's remaining messages go to the main queue, or without one to the source or a temporary queue.
    homes = [(queues.main or queues.source).queue_arn for queues in construct.queues]
    if any(queues.main is None for queues in construct.queues):
        homes.append(construct.temporary_queues)
    table_actions = ["GetItem", "Query", "PutItem", "UpdateItem", "DeleteItem"]
    statements = [
        allow("dynamodb", table_actions, state.table.table_arn),
        allow("sqs", TEMPORARY_ACTIONS, construct.temporary_queues, wildcards=AT_RUN_TIME),
        allow("sqs", ["SendMessage"], *homes, state.control_queue.queue_arn, state.dead_letters.queue_arn),
        allow("sqs", CONSUME_ACTIONS, state.control_queue.queue_arn),
        # Permissions of SQS: https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonsqs.html
        allow("sqs", ["ListQueues"], "*", wildcards="ListQueues takes no resource; the sweep needs it."),
        *_build_key_statements(construct),
    ]
    if sources:
        statements.append(allow("sqs", DESCRIBED, *sources))
    return statements


def _build_key_statements(construct: Splitting) -> list[Statement]:
    return [allow("kms", DECRYPTED, *construct.key_arns)] if construct.key_arns else []


def _build_splitter_settings(construct: Splitting) -> SplitterSettings:
    """Return the settings that the splitter and the control function share."""
    state = construct.state
    return SplitterSettings(
        table=state.table.table_name,
        dead_letters_url=state.dead_letters.queue_url,
        control_queue_url=state.control_queue.queue_url,
        split_queues=tuple(
            SplitConfig(
                queue_id=queues.parameters.queue_id,
                source=queues.source.queue_name,
                main=None if queues.main is None else queues.main.queue_name,
                **pick_shared_fields(queues.parameters, Envelope),
                drain_timeout_s=queues.parameters.drain_timeout_s,
                tags=queues.parameters.tags,
            )
            for queues in construct.queues
        ),
    )
