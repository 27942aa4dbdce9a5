"""Lists a site's constructs, and the queues that alarms and the dashboard cover."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.constructs.alarms import DEAD_LETTERS, Capability
from sluice.constructs.exchange import Exchange
from sluice.constructs.pipeline import LandingPipeline
from sluice.constructs.references import import_into
from sluice.constructs.rendezvous import Rendezvous
from sluice.constructs.site_construct import SiteConstruct
from sluice.constructs.splitting import SplitQueues, Splitting
from sluice.constructs.storage import LONGEST
from sluice.parameters import Parameters

C = TypeVar("C", bound=SiteConstruct)
# A land job that runs on demand may leave old messages, but must read each message before its retention ends.
UNSTREAMED_AGE_S = int(LONGEST.to_seconds()) // 2


@dataclass(frozen=True, slots=True)
class WatchedQueue:
    """A queue with alarms. The alarms' ids start with `name`; users see `description` in the alarms' texts.

    If the queue has no `capability`, its alarms aren't part of a composite alarm.
    """

    name: str
    queue: sqs.IQueue
    description: str
    capability: Capability | None
    heading: str
    reader: str = "function"


class WatchedSite:
    """The constructs of one site, with the parameters of operations.

    A capability that the site lacks is None. Queues are for use in the stack of `scope`, which has their alarms.
    """

    def __init__(self, scope: Construct, constructs: Sequence[SiteConstruct], parameters: Parameters) -> None:
        def find(kind: type[C]) -> C | None:
            return next((construct for construct in constructs if isinstance(construct, kind)), None)

        self.scope = scope
        self.constructs = constructs
        self.stage = parameters.stage
        self.options = parameters.operations
        self.rendezvous = find(Rendezvous)
        self.splitting = find(Splitting)
        self.exchange = find(Exchange)
        self.pipeline = find(LandingPipeline)
        self.offers_queue = None if self.rendezvous is None else import_into(scope, self.rendezvous.offers_queue)
        self.landed_queue = None if self.pipeline is None else import_into(scope, self.pipeline.queue)
        is_streaming = self.pipeline is not None and self.pipeline.options.streaming
        # The alarm threshold for the age of the oldest message in the land job's queue, in seconds.
        self.pipeline_age_s = self.options.pipeline_age_s if is_streaming else UNSTREAMED_AGE_S

    @property
    def split_queues(self) -> Sequence[SplitQueues]:
        """The split queues. Constructs may add split queues until they are finished."""
        return [] if self.splitting is None else import_into(self.scope, list(self.splitting.queues))

    def sources(self) -> Iterator[WatchedQueue]:
        """List the source and ingress queues. The offers queue has a separate alarm rule.

        Alarms on functions cover the queues between functions. Re-pointed consumers read the source without sessions.
        """
        for queues in self.split_queues:
            description, reader = f"source of {queues.parameters.queue_id}", "function" if queues.main else "consumer"
            yield WatchedQueue(
                f"{queues.id}Source", queues.source, description, Capability.SPLITTING, "SourceAge", reader
            )
        for ingress in [] if self.exchange is None else import_into(self.scope, list(self.exchange.state.ingresses)):
            publisher = ingress.exchange or ("of links" if ingress.from_links else "of publishers")
            description = f"ingress {publisher}{', FIFO' if ingress.fifo else ''}"
            yield WatchedQueue(ingress.id, ingress.queue, description, Capability.FEDERATION, "IngressAge")

    def dead_letters(self) -> Iterator[WatchedQueue]:
        """List the site's dead-letter queues."""
        queues_of_site: list[tuple[str, sqs.IQueue, str]] = []
        if self.rendezvous is not None:
            queues_of_site.append(("", self.rendezvous.state.dead_letters, "dead letters of the rendezvous"))
        if self.splitting is not None:
            queues_of_site.append(("Splitting", self.splitting.state.dead_letters, "dead letters of splitting"))
            queues_of_site += [
                (queues.id, queues.dead_letters, f"dead letters of {queues.parameters.queue_id}")
                for queues in self.split_queues
                if queues.dead_letters is not None
            ]
        if self.exchange is not None:
            state = self.exchange.state
            queues_of_site.append(("Federation", state.dead_letters, "dead letters of federation"))
            queues_of_site.append(("FederationFifo", state.fifo_dead_letters, "dead letters of federation, FIFO"))
        for prefix, queue, description in queues_of_site:
            imported = import_into(self.scope, queue)
            yield WatchedQueue(f"{prefix}{DEAD_LETTERS}", imported, description, None, DEAD_LETTERS)
