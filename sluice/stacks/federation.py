"""Federation: the exchange function behind ingress queues, the bridge function behind routes, the links function.

Every role's statements stand here, whole: nothing is granted by a construct on the side. Queues of peer sites are known
by what all sites' queues are called: the name that CloudFormation gives them begins with the stack's and theirs.
"""

from collections.abc import Sequence
from typing import cast

from aws_cdk import ArnFormat, Aws, CfnOutput
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct
from msgspec import UNSET

from sluice.federation import router
from sluice.federation.bridge_works import BRIDGE_QUEUE_PREFIX
from sluice.federation.links.links import Address
from sluice.federation.settings import BridgeSettings, ExchangeSettings, LinksSettings, SiteNames
from sluice.stacks import roles
from sluice.stacks.alarms import Capability, WatchedStack
from sluice.stacks.bundles.assets import Assets
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
from sluice.stacks.parameters import Access, Parameters
from sluice.stacks.state import BRIDGE_TIMEOUT, EXCHANGE_TIMEOUT, LINKS_TIMEOUT, StateStack
from sluice.stacks.values import id_of
from sluice.stages import staged

PEER_QUEUES = "SluiceState-Federation*"
PEER_ROLE = "SluiceFederation-PeerRole*"
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
# Who sends asks SQS for a data key, who receives to have it opened; a sender's may be one that is in use already:
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-key-management.html
RECEIVED_WITH, SENT_WITH = ["Decrypt"], ["Decrypt", "GenerateDataKey"]
AT_RUN_TIME = "Queues that operators bind and read at run time; which ones, federation.queue_names says."
OF_PEERS = "Peer sites' queues: their names end in what CloudFormation adds."


class FederationStack(WatchedStack):
    """Stack `SluiceFederation`."""

    capability = Capability.FEDERATION
    watched_by_age = frozenset({"Exchange"})

    def __init__(self, scope: Construct, parameters: Parameters, *, state: StateStack, assets: Assets) -> None:
        super().__init__(
            scope,
            staged("SluiceFederation", parameters.stage),
            description="Sluice: exchanges, links and routes between sites",
        )
        self.parameters = parameters.federation
        self.declared = parameters.declared
        self.state = state.federation
        self.accounts = [Aws.ACCOUNT_ID, *parameters.federation.peer_accounts]
        self.stage = parameters.stage
        self.peer_stages = list(dict.fromkeys((self.stage, *(each or None for each in self.parameters.peer_stages))))
        self.bridge_prefix = staged(BRIDGE_QUEUE_PREFIX, self.stage)
        self.bridge_queues = queue_arn(self, f"{self.bridge_prefix}*")
        self.queue_names = parameters.queue_names
        named = [queue_arn(self, pattern) for pattern in self.queue_names]
        taken = self.state.taken
        self.readable = [queue.queue_arn for name, queue in self.state.bound.items() if name not in taken] + named
        self.bindable = [queue.queue_arn for queue in self.state.bound.values()] + named
        self.functions = Functions.of(
            self, parameters, assets, extras=["functions", "splitter"]
        )  # whose filters routes have
        self.peer_role = _peer_role(self)
        _exchange(self)
        bridge = _bridge(self)
        links = _links(self, bridge)
        CfnOutput(self, "LinksFunctionName", value=links.function_name)
        CfnOutput(self, "SiteTag", value=self.state.site)
        CfnOutput(self, "FederationTableName", value=self.state.table.table_name)
        CfnOutput(self, "IngressUrl", value=self.state.ingresses[0].queue.queue_url)
        CfnOutput(self, "FifoIngressUrl", value=self.state.ingresses[1].queue.queue_url)
        CfnOutput(self, "LinksQueueUrl", value=self.state.links_queue.queue_url)
        CfnOutput(self, "FederationDeadLettersUrl", value=self.state.dead_letters.queue_url)
        for ingress in self.state.ingresses:
            if ingress.exchange is not None:
                CfnOutput(self, f"{ingress.id}Url", value=ingress.queue.queue_url, description=ingress.exchange)
        for name, queue in self.state.bound.items():
            CfnOutput(self, f"{id_of('Queue', name)}Url", value=queue.queue_url, description=name)


def _peer_role(stack: FederationStack) -> iam.Role | None:
    """Make what peers in other accounts assume; else the queues' own policies let them in."""
    accounts = stack.parameters.peer_accounts
    if not accounts:
        return None
    principals = [iam.AccountPrincipal(account) for account in accounts]
    if stack.parameters.access is Access.POLICY:
        for queue in stack.state.open_to_peers:
            queue.add_to_resource_policy(
                iam.PolicyStatement(actions=["sqs:SendMessage"], resources=[queue.queue_arn], principals=[*principals])
            )
        return None
    # A session has the name of its account, as AWS knows it: SQS says it of each message, so peers are told apart.
    conditions = {
        "StringEquals": {
            "sts:ExternalId": stack.parameters.external_id,
            "sts:RoleSessionName": "${aws:PrincipalAccount}",
        }
    }
    arns = [queue.queue_arn for queue in stack.state.open_to_peers]
    role = roles.role(
        stack,
        "PeerRole",
        description="Lets peer sites send to this one",
        assumed_by=iam.PrincipalWithConditions(iam.CompositePrincipal(*principals), conditions),
        allowed=[allow("sqs", ["SendMessage"], *arns)],
    )
    # The construct writes a statement for each account, and a trust policy holds 2,048 characters:
    # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
    trust = iam.PolicyStatement(actions=["sts:AssumeRole"], principals=[*principals], conditions=conditions)
    resource = cast("iam.CfnRole", role.node.default_child)
    resource.assume_role_policy_document = iam.PolicyDocument(statements=[trust])
    return role


def _exchange(stack: FederationStack) -> None:
    state, parameters = stack.state, stack.parameters
    ingresses = [ingress.queue.queue_arn for ingress in state.ingresses]
    function = stack.functions.make(
        Plan(
            name="exchange",
            timeout=EXCHANGE_TIMEOUT,
            memory_mb=parameters.exchange_memory_mb,
            settings=ExchangeSettings(
                site=state.site,
                peer_role_id=None if stack.peer_role is None else stack.peer_role.role_id,
                table=state.table.table_name,
                dead_letters_url=state.dead_letters.queue_url,
                ticks_queue_url=state.ticks_queue.queue_url,
                ingresses={
                    each.queue.queue_name: router.Ingress(
                        fifo=each.fifo,
                        from_links=each.from_links,
                        trusted=parameters.trust_publishers,
                        exchange=each.exchange,
                    )
                    for each in state.ingresses
                },
            ),
            run_time_queues=[stack.bridge_prefix],
            wildcards=_patterns(stack),
            allowed=[
                allow("dynamodb", ["GetItem", "Query"], state.table.table_arn),
                allow("sqs", CONSUME_ACTIONS, *ingresses),
                allow("sqs", ["SendMessage"], stack.bridge_queues, *stack.bindable),
                allow("sqs", ["SendMessage"], state.ticks_queue.queue_arn, state.dead_letters.queue_arn),
                *_kms(stack, SENT_WITH),
            ],
        )
    )
    for ingress in state.ingresses:
        most = parameters.batch_size
        trigger(
            ingress.id,
            function,
            ingress.queue,
            batch=min(most, SMALL_BATCH) if ingress.fifo else most,
            window_s=None if ingress.fifo else parameters.batching_window_s,
            concurrency=parameters.max_concurrency,
            enabled=not ingress.from_links,
        )


def _bridge(stack: FederationStack) -> lambda_.Function:
    state = stack.state
    return stack.functions.make(
        Plan(
            name="bridge",
            timeout=BRIDGE_TIMEOUT,
            memory_mb=stack.parameters.bridge_memory_mb,
            settings=BridgeSettings(
                site=state.site,
                account=Aws.ACCOUNT_ID,
                table=state.table.table_name,
                dead_letters_url=state.dead_letters.queue_url,
                ticks_queue_url=state.ticks_queue.queue_url,
            ),
            run_time_queues=[stack.bridge_prefix],
            wildcards=_patterns(stack) | _peers(stack),
            allowed=[
                allow("dynamodb", ["GetItem", "PutItem", "UpdateItem"], state.table.table_arn),
                allow("sqs", CONSUME_ACTIONS, stack.bridge_queues, *stack.readable),
                allow("sqs", ["SendMessage"], state.ticks_queue.queue_arn, state.dead_letters.queue_arn),
                *_kms(stack, RECEIVED_WITH),
                *_to_peers(stack),
            ],
        )
    )


def _links(stack: FederationStack, bridge: lambda_.Function) -> lambda_.Function:
    state = stack.state
    function = stack.functions.make(
        Plan(
            name="links",
            timeout=LINKS_TIMEOUT,
            memory_mb=stack.parameters.links_memory_mb,
            settings=_links_settings(stack, bridge),
            run_time_queues=[stack.bridge_prefix],
            wildcards=_patterns(stack)
            | _peers(stack)
            | {"*": "Event source mappings are made at run time; the condition names the functions they are of."},
            allowed=_links_statements(stack, bridge),
            failures=state.dead_letters,
            # A tick arms the next one while a link is tried. Lambda would take that for a runaway loop:
            # https://docs.aws.amazon.com/lambda/latest/dg/invocation-recursion.html
            recursive_loop=lambda_.RecursiveLoop.ALLOW,
        )
    )
    # What peers know of this site: whose messages are its own.
    roles = [cast("iam.Role", stack.node.find_child(f"{name}Role")).role_id for name in ("Links", "Bridge")]
    function.add_environment("SENDERS", stack.to_json_string(roles))
    trigger("Links", function, state.links_queue, enabled=False)
    trigger("Ticks", function, state.ticks_queue, concurrency=None)
    every_minute(function, {"op": "sweep"})
    return function


def _links_settings(stack: FederationStack, bridge: lambda_.Function) -> LinksSettings:
    state, parameters, role = stack.state, stack.parameters, stack.peer_role
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
            stage=stack.stage or UNSET,
        ),
        peer_role_id=None if role is None else role.role_id,
        peers=parameters.known_peers,
        table=state.table.table_name,
        dead_letters_url=state.dead_letters.queue_url,
        ticks_queue_url=state.ticks_queue.queue_url,
        bridge_function=bridge.function_name,
        bridge_dead_letters_arn=state.dead_letters.queue_arn,
        fifo_bridge_dead_letters_arn=state.fifo_dead_letters.queue_arn,
        accounts=tuple(stack.accounts),
        stages=parameters.peer_stages or None,
        counts_settle_s=parameters.counts_settle_s,
        kms_key_arn=parameters.kms_key_arn,
        names=SiteNames(
            queues={name: queue.queue_name for name, queue in state.bound.items()},
            patterns=stack.queue_names,
            taken=sorted(state.taken),
        ),
        declaration=stack.declared.to_json(),
    )


def _links_statements(stack: FederationStack, bridge: lambda_.Function) -> Sequence[iam.PolicyStatement]:
    state = stack.state
    # What peers send is read once there are peers. By their names' beginnings, as a function's role comes before it.
    named = (
        stack.format_arn(
            service="lambda",
            resource="function",
            arn_format=ArnFormat.COLON_RESOURCE_NAME,
            resource_name=f"{stack.stack_name}-{name}*",
        )
        for name in ("Exchange", "Links")
    )
    of_functions = {"ArnLike": {"lambda:FunctionArn": [bridge.function_arn, *named]}}
    table_actions = ["GetItem", "Query", "PutItem", "UpdateItem", "BatchWriteItem"]
    mapping_actions = [f"lambda:{action}EventSourceMapping" for action in ("Create", "Update", "Delete", "Get")]
    return [
        allow("dynamodb", table_actions, state.table.table_arn),
        allow("sqs", BRIDGE_QUEUE_ACTIONS, stack.bridge_queues),
        allow("sqs", ["GetQueueAttributes"], *stack.bindable),
        allow("sqs", CONSUME_ACTIONS, state.links_queue.queue_arn, state.ticks_queue.queue_arn),
        allow("sqs", ["ReceiveMessage", "DeleteMessage", "SendMessage"], state.dead_letters.queue_arn),
        allow("sqs", ["SendMessage"], state.ticks_queue.queue_arn, *stack.bindable),  # whose dead letters are put back
        iam.PolicyStatement(actions=mapping_actions, resources=["*"], conditions=of_functions),
        # It takes neither a resource nor that condition.
        allow("lambda", ["ListEventSourceMappings"], "*"),
        *_kms(stack, SENT_WITH),
        *_to_peers(stack),
    ]


def _kms(stack: FederationStack, actions: Sequence[str]) -> Sequence[iam.PolicyStatement]:
    """Allow to use the customer's key, where queues are made with it at run time."""
    key = stack.parameters.kms_key_arn
    return [] if key is None else [allow("kms", actions, key)]


def _to_peers(stack: FederationStack) -> Sequence[iam.PolicyStatement]:
    """Allow to send to peer sites, in whichever region, by policy or by role."""
    return [
        allow(
            "sqs",
            ["SendMessage"],
            *(f"arn:{Aws.PARTITION}:sqs:*:{account}:{name}" for account, name in _at_peers(stack, PEER_QUEUES)),
        ),
        allow(
            "sts",
            ["AssumeRole"],
            *(f"arn:{Aws.PARTITION}:iam::{account}:role/{name}" for account, name in _at_peers(stack, PEER_ROLE)),
        ),
    ]


def _at_peers(stack: FederationStack, name: str) -> list[tuple[str, str]]:
    """Give a name as it is at peers, with each account that they may be in."""
    return [(account, staged(name, stage)) for account in stack.accounts for stage in stack.peer_stages]


def _patterns(stack: FederationStack) -> dict[str, str]:
    """Why a role names queues with wildcards."""
    return {
        f"arn:<AWS::Partition>:sqs:<AWS::Region>:<AWS::AccountId>:{pattern}": AT_RUN_TIME
        for pattern in stack.queue_names
        if "*" in pattern
    }


def _peers(stack: FederationStack) -> dict[str, str]:
    accounts = ["<AWS::AccountId>", *stack.parameters.peer_accounts]
    stages = stack.peer_stages
    queues, roles = ([staged(name, stage) for stage in stages] for name in (PEER_QUEUES, PEER_ROLE))
    arns = [f"arn:<AWS::Partition>:sqs:*:{account}:{name}" for account in accounts for name in queues]
    arns += [f"arn:<AWS::Partition>:iam::{account}:role/{name}" for account in accounts for name in roles]
    return dict.fromkeys(arns, OF_PEERS)
