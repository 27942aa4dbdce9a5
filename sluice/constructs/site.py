"""Creates a whole site in one construct, and the resources of a site that outlive its functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.constructs.arguments import SiteProps, check_arguments
from sluice.constructs.exchange import Exchange
from sluice.constructs.exchange_state import ExchangeState
from sluice.constructs.operations import Operations, create_alarms_topic
from sluice.constructs.pipeline import LandingPipeline, PipelineState, find_landed_queue
from sluice.constructs.rendezvous import Rendezvous, RendezvousState
from sluice.constructs.site_construct import NOTHING, SiteConstruct, parse_parameters
from sluice.constructs.splitting import Splitting, SplittingState
from sluice.constructs.storage import encrypt_resources
from sluice.parameters import Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteState:
    """Tables, bucket and queues of a site. `pipeline` is None if the pipeline lands no split queue."""

    rendezvous: RendezvousState
    splitting: SplittingState
    exchange: ExchangeState
    pipeline: PipelineState | None

    @classmethod
    def create(cls, scope: Construct, parameters: Parameters, *, offers_queue: sqs.IQueue | None = None) -> "SiteState":
        """Create the tables, bucket and queues in `scope`."""
        rendezvous = RendezvousState.create(scope, parameters, offers_queue=offers_queue)
        splitting = SplittingState.create(scope, parameters)
        # An exchange sends to a split queue's source queue, so that sessions get messages before the deployed consumer.
        reserved = {queue.parameters.queue_id: queue.source for queue in splitting.queues}
        main = find_landed_queue(splitting.queues, parameters)
        return cls(
            rendezvous=rendezvous,
            splitting=splitting,
            exchange=ExchangeState.create(scope, parameters, reserved=reserved),
            pipeline=None if main is None else PipelineState.create(scope, parameters, main=main),
        )


@check_arguments
class Site(Construct):
    """All of Sluice in one stack of yours, instead of the six stacks of `sluice deploy`.

    Only one site is allowed per stage, account and region. `parameters` maps sections to their parameters, as in
    cdk.json. Your `alarms_topic` must allow CloudWatch, EventBridge and Budgets to publish. Raises `BadConfiguration`,
    with the construct's path.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        offers_queue: sqs.IQueue | None = None,
        alarms_topic: sns.ITopic | None = None,
        parameters: Mapping[str, object] | Parameters = NOTHING,
        **props: Unpack[SiteProps],
    ) -> None:
        """Create all resources of the site. Bindings and split queues may be added until the app is synthesized."""
        super().__init__(scope, id_)
        read = parse_parameters(self, None, parameters, props)
        encrypt_resources(self, read.kms_key_arn)
        state = SiteState.create(self, read, offers_queue=offers_queue)
        self.rendezvous = Rendezvous(
            self, "Rendezvous", parameters=read, state=state.rendezvous, exchange=state.exchange
        )
        self.splitting = Splitting(self, "Splitting", parameters=read, state=state.splitting)
        self.exchange = Exchange(self, "Exchange", parameters=read, state=state.exchange)
        self.pipeline: LandingPipeline | None = None
        if state.pipeline is not None:
            self.pipeline = LandingPipeline(
                self,
                "Pipeline",
                parameters=read,
                state=state.pipeline,
                exchange=state.exchange,
                kms_key_arns=read.splitting.kms_key_arns,
            )
        capabilities: list[SiteConstruct | None] = [self.rendezvous, self.splitting, self.exchange, self.pipeline]
        self.operations = Operations(
            self,
            "Operations",
            parameters=read,
            watched=[capability for capability in capabilities if capability is not None],
            topic=alarms_topic or create_alarms_topic(self, read),
        )
