"""Creates a site's federation: exchanges and their bindings, and the links and routes between sites.

The exchange function reads ingress queues, the bridge function forwards messages over routes, and the links function
manages links and routes. Every role's statements are in this module; no construct grants more. Policies name peer
sites' queues by a prefix that all sites share: CloudFormation's generated names in our own stacks begin with the
prefix, and queues in other stacks are named explicitly.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack, cast

from aws_cdk import ArnFormat, Aws
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct
from msgspec import UNSET

from sluice.building.project import PROJECT
from sluice.bundles.assets import Assets
from sluice.constructs import roles
from sluice.constructs.alarms import Capability, build_metric
from sluice.constructs.arguments import SiteProps, check_arguments
from sluice.constructs.exchange_state import BRIDGE_TIMEOUT, EXCHANGE_TIMEOUT, LINKS_TIMEOUT, STATE, ExchangeState
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
from sluice.constructs.roles import Statement, allow, allow_event_source_mappings
from sluice.constructs.site_construct import (
    NOTHING,
    SiteConstruct,
    StackOutput,
    name_construct_in_errors,
)
from sluice.constructs.splitting import SplitQueue
from sluice.errors import BadConfiguration
from sluice.federation import router
from sluice.federation.bridge_provisioner import BRIDGE_QUEUE_PREFIX
from sluice.federation.links.links import Address
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.settings import BridgeSettings, ExchangeSettings, LinksSettings, SiteNames
from sluice.parameters import ROOT, Parameters
from sluice.parameters.event_sources import Reading
from sluice.parameters.federation import Access
from sluice.parameters.values import construct_id
from sluice.stages import add_stage_prefix

PEER_ROLE_ID = "PeerRole"
PEER_QUEUES = f"{STATE}-Federation*"
PEER_ROLE = f"SluiceFederation-{PEER_ROLE_ID}*"
BRIDGE_QUEUE_ACTIONS = (
    "CreateQueue",
    "TagQueue",
    "GetQueueAttributes",
    "SetQueueAttributes",
    "ReceiveMessage",
    "SendMessage",
    "DeleteMessage",
    "DeleteQueue",
)
# A sender needs permission to generate and decrypt SQS's data key; a receiver needs permission to decrypt it:
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-key-management.html
RECEIVED_WITH, SENT_WITH = ["Decrypt"], ["Decrypt", "GenerateDataKey"]
QUEUES = f"{AT_RUN_TIME} federation.queue_names says which queues operators bind and read at run time."
OF_PEERS = "CloudFormation generates the ends of the names of peer sites' queues and roles."


@check_arguments
class Exchange(SiteConstruct):
    """All exchanges of a site, which send published messages to bound queues of this site and of linked sites.

    Only one `Exchange` is allowed per stage, account and region, because peers know its queues by name. `parameters`
    are the parameters of section `federation`. Exchanges, bindings and queues may be added until the app is
    synthesized. Raises `BadConfiguration`, with the construct's path.
    """

    capability = Capability.FEDERATION
    stack_name: ClassVar[str] = "SluiceFederation"
    watched_by_age = frozenset({"Exchange"})

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        state: ExchangeState | None = None,
        parameters: Mapping[str, object] | Parameters = NOTHING,
        assets: Assets | None = None,
        **props: Unpack[SiteProps],
    ) -> None:
        """Create all resources of federation, and also the state unless another stack's `state` is given."""
        super().__init__(scope, id_, "federation", parameters, props)
        self.options = self.parameters.federation
        self.state = import_into(self, state or ExchangeState.create(self, self.parameters))
        self.assets = assets or Assets(PROJECT)
        self.key_arn = self.options.kms_key_arn or self.parameters.kms_key_arn  # Encrypts queues created at run time.
        self.key_arns = [] if self.key_arn is None else [self.key_arn]
        self.accounts = [Aws.ACCOUNT_ID, *self.options.peer_accounts]
        self.stage = self.parameters.stage
        self.peer_stages = list(dict.fromkeys((self.stage, *(stage or None for stage in self.options.peer_stages))))
        self.bridge_queues = format_queue_arn(self.stack, f"{add_stage_prefix(BRIDGE_QUEUE_PREFIX, self.stage)}*")
        self.named = [format_queue_arn(self.stack, pattern) for pattern in self.parameters.queue_names]

    @property
    def ingress_queue(self) -> sqs.IQueue:
        """The queue to which producers publish messages for any exchange."""
        return self.state.ingresses[0].queue

    @property
    def fifo_ingress_queue(self) -> sqs.IQueue:
        """The FIFO queue to which producers publish for any exchange. It keeps the order of each message group."""
        return self.state.ingresses[1].queue

    @property
    def tag(self) -> str:
        """The site's permanent name among its peers."""
        return self.state.site

    def declare(self, name: str, type_: str = ExchangeType.TOPIC, *, alternate: str | None = None) -> None:
        """Declare an exchange: direct, topic, fanout or headers. Unmatched messages go to the exchange `alternate`."""
        entry = {"name": name, "type": str(type_)} | ({} if alternate is None else {"alternate": alternate})
        self._add_to_parameter("exchanges", entry)

    def bind(
        self,
        queue: sqs.IQueue | SplitQueue,
        *,
        exchange: str,
        key: str = "",
        arguments: Mapping[str, object] = NOTHING,
        name: str | None = None,
    ) -> None:
        """Bind a queue to an exchange, for messages that match `key`, or `arguments` if the type is headers.

        The binding is declared: a deployment creates it, and a deployment without it removes it. Commands refer to the
        queue by `name`, which defaults to the construct's id, and to a split queue by its `queue_id`.
        """
        self._check_not_finished()
        is_split = isinstance(queue, SplitQueue)
        bound = queue.source_queue if isinstance(queue, SplitQueue) else queue
        name = queue.queue_id if isinstance(queue, SplitQueue) else name or queue.node.id
        if (queues := self.state.bound_queues).get(name, bound).queue_arn != bound.queue_arn:
            raise BadConfiguration(f"{self.node.path}: another queue is bound as {name}: give it another name")
        if not name or construct_id("", name) in {construct_id("", used) for used in queues if used != name}:
            raise BadConfiguration(f"{self.node.path}: {name!r} is too similar to another bound queue's name")
        entry: dict[str, Any] = {"exchange": exchange, "queue": name, "key": key}
        self._add_to_parameter("bindings", entry | ({"arguments": dict(arguments)} if arguments else {}))
        queues[name] = bound
        if is_split:
            self.state.reserved_names.add(name)
        encryption_key = bound.encryption_master_key
        if encryption_key is not None and encryption_key.key_arn not in self.key_arns:
            self.key_arns.append(encryption_key.key_arn)

    def grant_publish(self, grantee: iam.IGrantable) -> iam.Grant:
        """Allow a producer to publish to the standard and the FIFO ingress queue."""
        return self.ingress_queue.grant_send_messages(grantee).combine(
            self.fifo_ingress_queue.grant_send_messages(grantee)
        )

    def metric(self, name: str, *, service: str = "exchange", statistic: str = "Sum") -> cloudwatch.Metric:
        """Return a metric of one of federation's functions, such as `MessagesRouted`: see docs/operations.md."""
        return build_metric(name, service, stage=self.stage, statistic=statistic)

    @property
    def readable_arns(self) -> Sequence[str]:
        """ARNs of queues that routes may read."""
        bound, taken = self.state.bound_queues, self.state.reserved_names
        return [queue.queue_arn for name, queue in bound.items() if name not in taken] + self.named

    @property
    def bindable_arns(self) -> Sequence[str]:
        """ARNs of queues that may be bound."""
        return [queue.queue_arn for queue in self.state.bound_queues.values()] + self.named

    def _add_to_parameter(self, parameter: str, entry: Mapping[str, object]) -> None:
        """Add an entry to the list parameter `parameter`, and validate all parameters again."""
        self._check_not_finished()
        context = self.parameters.model_dump(mode="json", exclude_unset=True)
        of_federation = context.setdefault("federation", {})
        of_federation[parameter] = [*getattr(self.options, parameter), entry]
        self.parameters = name_construct_in_errors(self.node.path, lambda: Parameters.from_context({ROOT: context}))
        self.options = self.parameters.federation

    def _finish(self) -> None:
        self.functions = Functions.create(self, self.assets, extras=["functions", "splitter"])
        self.peer_role = _create_peer_role(self)
        _create_exchange_function(self)
        links = _create_links_function(self, _create_bridge_function(self))
        state = self.state
        outputs = [
            StackOutput(name="LinksFunctionName", value=links.function_name),
            StackOutput(name="SiteTag", value=state.site),
            StackOutput(name="FederationTableName", value=state.table.table_name),
            StackOutput(name="IngressUrl", value=self.ingress_queue.queue_url),
            StackOutput(name="FifoIngressUrl", value=self.fifo_ingress_queue.queue_url),
            StackOutput(name="LinksQueueUrl", value=state.links_queue.queue_url),
            StackOutput(name="FederationDeadLettersUrl", value=state.dead_letters.queue_url),
        ]
        outputs += [
            StackOutput(name=f"{ingress.id}Url", value=ingress.queue.queue_url, description=ingress.exchange)
            for ingress in state.ingresses
            if ingress.exchange is not None
        ]
        outputs += [
            StackOutput(name=f"{construct_id('Queue', name)}Url", value=queue.queue_url, description=name)
            for name, queue in state.bound_queues.items()
        ]
        self.home.publish(self, outputs)


def _create_peer_role(construct: Exchange) -> iam.Role | None:
    """Create the role that peers in other accounts assume. Returns None if no peer needs the role."""
    accounts = construct.options.peer_accounts
    if not accounts or construct.options.access is Access.POLICY:
        return None
    principals = [iam.AccountPrincipal(account) for account in accounts]
    # A peer's role session is named after the peer's account id. SQS adds that name to each message.
    conditions = {
        "StringEquals": {
            "sts:ExternalId": construct.options.external_id,
            "sts:RoleSessionName": "${aws:PrincipalAccount}",
        }
    }
    arns = [queue.queue_arn for queue in construct.state.peer_queues]
    role = roles.create_role(
        construct,
        PEER_ROLE_ID,
        name=None if construct.home.is_own_stack else f"{construct.home.name}-{PEER_ROLE_ID}-{Aws.REGION}",
        description="Lets peer sites send to this one",
        assumed_by=iam.PrincipalWithConditions(iam.CompositePrincipal(*principals), conditions),
        allowed=[allow("sqs", ["SendMessage"], *arns)],
    )
    # CDK's construct would write a statement for each account, but a trust policy has at most 2,048 characters:
    # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
    trust = iam.PolicyStatement(actions=["sts:AssumeRole"], principals=[*principals], conditions=conditions)
    resource = cast("iam.CfnRole", role.node.default_child)
    resource.assume_role_policy_document = iam.PolicyDocument(statements=[trust])
    return role


def _create_exchange_function(construct: Exchange) -> None:
    state, parameters = construct.state, construct.options
    ingresses = [ingress.queue.queue_arn for ingress in state.ingresses]
    function = construct.functions.create_function(
        "exchange",
        timeout=EXCHANGE_TIMEOUT,
        memory_mb=parameters.exchange_memory_mb,
        settings=ExchangeSettings(
            site=state.site,
            peer_role_id=None if construct.peer_role is None else construct.peer_role.role_id,
            table=state.table.table_name,
            dead_letters_url=state.dead_letters.queue_url,
            ticks_queue_url=state.ticks_queue.queue_url,
            ingresses={
                ingress.queue.queue_name: router.Ingress(
                    fifo=ingress.fifo,
                    from_links=ingress.from_links,
                    trusted=parameters.trust_publishers,
                    exchange=ingress.exchange,
                )
                for ingress in state.ingresses
            },
        ),
        allowed=[
            allow("dynamodb", ["GetItem", "Query"], state.table.table_arn),
            allow("sqs", CONSUME_ACTIONS, *ingresses),
            allow("sqs", ["SendMessage"], construct.bridge_queues, *construct.bindable_arns, wildcards=QUEUES),
            allow("sqs", ["SendMessage"], state.ticks_queue.queue_arn, state.dead_letters.queue_arn),
            *_build_key_statements(construct, SENT_WITH),
        ],
        # Applications may publish received messages any number of times. Traces end loops of sites.
        may_recur=True,
        is_called_often=True,
    )
    for ingress in state.ingresses:
        trigger(
            ingress.id,
            function,
            ingress.queue,
            reading=parameters.reading(fifo=ingress.fifo),
            enabled=not ingress.from_links,
        )


def _create_bridge_function(construct: Exchange) -> lambda_.Function:
    state = construct.state
    return construct.functions.create_function(
        "bridge",
        timeout=BRIDGE_TIMEOUT,
        memory_mb=construct.options.bridge_memory_mb,
        settings=BridgeSettings(
            site=state.site,
            account=Aws.ACCOUNT_ID,
            table=state.table.table_name,
            dead_letters_url=state.dead_letters.queue_url,
            ticks_queue_url=state.ticks_queue.queue_url,
        ),
        allowed=[
            allow("dynamodb", ["GetItem", "PutItem", "UpdateItem"], state.table.table_arn),
            allow("sqs", CONSUME_ACTIONS, construct.bridge_queues, *construct.readable_arns, wildcards=QUEUES),
            allow("sqs", ["SendMessage"], state.ticks_queue.queue_arn, state.dead_letters.queue_arn),
            *_build_key_statements(construct, RECEIVED_WITH),
            *_build_peer_statements(construct),
        ],
        may_recur=True,  # Applications may publish received messages again; the trace ends other loops.
        is_called_often=True,
    )


def _create_links_function(construct: Exchange, bridge: lambda_.Function) -> lambda_.Function:
    state = construct.state
    # The links function enables the triggers of peers' queues once peers exist. Wildcards match generated names.
    named = (
        construct.stack.format_arn(
            service="lambda",
            resource="function",
            arn_format=ArnFormat.COLON_RESOURCE_NAME,
            resource_name=f"{construct.home.name}-{name}*",
        )
        for name in ("Exchange", "Links")
    )
    table_actions = ["GetItem", "Query", "PutItem", "UpdateItem", "BatchWriteItem"]
    function = construct.functions.create_function(
        "links",
        timeout=LINKS_TIMEOUT,
        memory_mb=construct.options.links_memory_mb,
        settings=_build_links_settings(construct, bridge),
        allowed=[
            allow("dynamodb", table_actions, state.table.table_arn),
            allow("sqs", BRIDGE_QUEUE_ACTIONS, construct.bridge_queues, wildcards=QUEUES),
            allow("sqs", ["GetQueueAttributes"], *construct.bindable_arns, wildcards=QUEUES),
            allow("sqs", CONSUME_ACTIONS, state.links_queue.queue_arn, state.ticks_queue.queue_arn),
            allow("sqs", ["ReceiveMessage", "DeleteMessage", "SendMessage"], state.dead_letters.queue_arn),
            # The links function redrives dead letters of bound queues to these queues.
            allow("sqs", ["SendMessage"], state.ticks_queue.queue_arn, *construct.bindable_arns, wildcards=QUEUES),
            *allow_event_source_mappings([bridge.function_arn, *named]),
            *_build_key_statements(construct, SENT_WITH),
            *_build_peer_statements(construct),
        ],
        failures=state.dead_letters,
        may_recur=True,  # While a link is retried, each tick sends the next tick.
    )
    # A peer recognizes this site's messages by the id of the role that sends them.
    roles = [cast("iam.Role", construct.node.find_child(f"{name}Role")).role_id for name in ("Links", "Bridge")]
    function.add_environment("SENDERS", construct.stack.to_json_string(roles))
    trigger("Links", function, state.links_queue, enabled=False)
    trigger("Ticks", function, state.ticks_queue, reading=Reading())
    invoke_every_minute(function, {"op": "sweep"})
    create_reader_alias(function)
    return function


def _build_links_settings(construct: Exchange, bridge: lambda_.Function) -> LinksSettings:
    state, parameters, role = construct.state, construct.options, construct.peer_role
    _, _, ingress, fifo_ingress, *_ = state.ingresses
    return LinksSettings(
        here=Address(
            tag=state.site,
            region=Aws.REGION,
            account=Aws.ACCOUNT_ID,
            control_queue_url=state.links_queue.queue_url,
            ingress_url=ingress.queue.queue_url,
            fifo_ingress_url=fifo_ingress.queue.queue_url,
            role_arn=None if role is None else role.role_arn,
            external_id=None if role is None else parameters.external_id,
            sqs_url=parameters.sqs_url,
            stage=construct.stage or UNSET,
        ),
        peer_role_id=None if role is None else role.role_id,
        peers=parameters.known_peers,
        table=state.table.table_name,
        dead_letters_url=state.dead_letters.queue_url,
        ticks_queue_url=state.ticks_queue.queue_url,
        bridge_function=bridge.function_name,
        bridge_dead_letters_arn=state.dead_letters.queue_arn,
        fifo_bridge_dead_letters_arn=state.fifo_dead_letters.queue_arn,
        accounts=tuple(construct.accounts),
        stages=parameters.peer_stages or None,
        counts_settle_s=parameters.counts_settle_s,
        kms_key_arn=construct.key_arn,
        names=SiteNames(
            queues={name: queue.queue_name for name, queue in state.bound_queues.items()},
            patterns=construct.parameters.queue_names,
            reserved=sorted(state.reserved_names),
        ),
        declaration=construct.parameters.declared.to_json(),
    )


def _build_key_statements(construct: Exchange, actions: Sequence[str]) -> Sequence[Statement]:
    """Allow using the customer managed KMS keys of queues that are created at run time and of bound queues."""
    return [allow("kms", actions, *construct.key_arns)] if construct.key_arns else []


def _build_peer_statements(construct: Exchange) -> Sequence[Statement]:
    """Allow sending to peer sites in any region, directly or after assuming the roles of the peers."""
    sites = [(account, stage) for account in construct.accounts for stage in construct.peer_stages]
    queues = [f"arn:{Aws.PARTITION}:sqs:*:{account}:{add_stage_prefix(PEER_QUEUES, stage)}" for account, stage in sites]
    roles = [
        f"arn:{Aws.PARTITION}:iam::{account}:role/{add_stage_prefix(PEER_ROLE, stage)}" for account, stage in sites
    ]
    return [
        allow("sqs", ["SendMessage"], *queues, wildcards=OF_PEERS),
        allow("sts", ["AssumeRole"], *roles, wildcards=OF_PEERS),
    ]
