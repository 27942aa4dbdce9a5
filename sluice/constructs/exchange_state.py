"""Creates the resources that outlive a site's federation functions: its table, ingress queues and bound queues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import Aws, Duration, Fn
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.constructs import storage
from sluice.constructs.site_construct import StackHome
from sluice.parameters import Parameters
from sluice.parameters.federation import Access, BoundQueueParameters
from sluice.parameters.values import add_queue_type, construct_id
from sluice.stages import add_stage_prefix

STATE = "SluiceState"  # Our own stack of this name has the queues that peers send to.
EXCHANGE_TIMEOUT = Duration.seconds(30)
BRIDGE_TIMEOUT = Duration.seconds(30)  # This is SQS's default visibility timeout, because a route may read any queue.
LINKS_TIMEOUT = Duration.seconds(60)
NO_QUEUES: Mapping[str, sqs.IQueue] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """A queue that producers or links publish to. `id` is its construct id; with `exchange` None, any is allowed."""

    id: str
    queue: sqs.IQueue
    fifo: bool
    from_links: bool = False
    exchange: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeState:
    """Resources that outlive federation's functions: the site's tag, table and queues.

    `bound_queues` maps user-chosen names to bindable queues. `reserved_names` has those that the site itself reads.
    """

    site: str
    table: dynamodb.ITable
    dead_letters: sqs.IQueue
    fifo_dead_letters: sqs.IQueue
    links_queue: sqs.IQueue
    ticks_queue: sqs.IQueue
    ingresses: Sequence[Ingress]
    bound_queues: dict[str, sqs.IQueue]
    reserved_names: set[str]

    @classmethod
    def create(
        cls, scope: Construct, parameters: Parameters, *, reserved: Mapping[str, sqs.IQueue] = NO_QUEUES
    ) -> "ExchangeState":
        """Create the resources in `scope`. `reserved` maps names to bindable queues that the site itself reads."""
        federation, keep = parameters.federation, parameters.rendezvous.keep_state
        home = StackHome.of(scope, STATE, parameters.stage)
        dead_letters = storage.create_queue(scope, "FederationDeadLetters", keep=keep)
        fifo_dead_letters = storage.create_queue(scope, "FederationFifoDeadLetters", keep=keep, fifo=True)

        def create_queue(
            id_: str,
            *,
            fifo: bool,
            visibility: Duration,
            retention: Duration = storage.LONGEST,
            users: bool = False,
            peers: bool = False,
        ) -> sqs.Queue:
            named = home.physical_name(id_) if peers else None
            return storage.create_queue(
                scope,
                id_,
                dead_letters=fifo_dead_letters if fifo else dead_letters,
                visibility=visibility,
                retention=retention,
                fifo=fifo,
                per_group=fifo,
                name=f"{named}.fifo" if named and fifo else named,
                keep=keep and users,
            )

        def create_ingress(id_: str, *, fifo: bool, from_links: bool = False, exchange: str | None = None) -> Ingress:
            visibility = storage.visibility_timeout(EXCHANGE_TIMEOUT, federation.reading(fifo=fifo).window_s or 0)
            made = create_queue(f"Federation{id_}", fifo=fifo, visibility=visibility, users=True, peers=from_links)
            return Ingress(id=id_, queue=made, fifo=fifo, from_links=from_links, exchange=exchange)

        def create_bound_queue(each: BoundQueueParameters) -> sqs.IQueue:
            id_ = construct_id("FederationBound", add_queue_type(each.name, fifo=each.fifo))
            if each.existing_arn is not None:
                return sqs.Queue.from_queue_arn(scope, id_, each.existing_arn)
            return create_queue(id_, fifo=each.fifo, visibility=BRIDGE_TIMEOUT, users=True)

        state = cls(
            site=federation.tag or _build_default_tag(parameters.stage),
            table=storage.create_table(scope, "FederationTable", keep=keep),
            dead_letters=dead_letters,
            fifo_dead_letters=fifo_dead_letters,
            links_queue=create_queue(
                "FederationLinks", fifo=True, visibility=storage.visibility_timeout(LINKS_TIMEOUT), peers=True
            ),
            ticks_queue=create_queue(
                "FederationTicks",
                fifo=False,
                visibility=storage.visibility_timeout(LINKS_TIMEOUT),
                retention=storage.TICKS_RETENTION,
            ),
            ingresses=[
                create_ingress("Ingress", fifo=False),
                create_ingress("FifoIngress", fifo=True),
                create_ingress("LinkIngress", fifo=False, from_links=True),
                create_ingress("FifoLinkIngress", fifo=True, from_links=True),
                *(
                    create_ingress(
                        construct_id("Ingress", add_queue_type(entry.exchange, fifo=entry.fifo)),
                        fifo=entry.fifo,
                        exchange=entry.exchange,
                    )
                    for entry in federation.ingresses
                ),
            ],
            bound_queues={queue.name: create_bound_queue(queue) for queue in federation.queues} | dict(reserved),
            reserved_names=set(reserved),
        )
        if federation.peer_accounts and federation.access is Access.POLICY:
            peers = [iam.AccountPrincipal(account) for account in federation.peer_accounts]
            for open_queue in state.peer_queues:
                resources = [open_queue.queue_arn]
                open_queue.add_to_resource_policy(
                    iam.PolicyStatement(actions=["sqs:SendMessage"], resources=resources, principals=[*peers])
                )
        return state

    @property
    def peer_queues(self) -> Sequence[sqs.IQueue]:
        """The names of the queues that peer sites send to."""
        return [self.links_queue, *(ingress.queue for ingress in self.ingresses if ingress.from_links)]


def _build_default_tag(stage: str | None) -> str:
    """Return the default tag: region and account. With a stage, the tag has no hyphens, which keeps it short."""
    if stage is None:
        return f"{Aws.REGION}-{Aws.ACCOUNT_ID}"
    return add_stage_prefix(f"{Aws.ACCOUNT_ID}{Fn.join('', Fn.split('-', Aws.REGION))}", stage)
