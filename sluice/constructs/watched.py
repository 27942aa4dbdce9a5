"""The constructs of a site, and those of their queues that alarms and the dashboard cover."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aws_cdk import aws_sqs as sqs

from sluice.constructs.alarms import DEAD_LETTERS, Capability
from sluice.constructs.exchange import Exchange
from sluice.constructs.pipeline import LandingPipeline
from sluice.constructs.rendezvous import Rendezvous
from sluice.constructs.site_construct import SiteConstruct
from sluice.constructs.splitting import Splitting
from sluice.constructs.storage import LONGEST
from sluice.parameters import Parameters
from sluice.parameters.operations import OperationsParameters

# If the land job is started on demand, messages may be old, but must not reach the end of their retention.
UNSTREAMED_AGE_S = int(LONGEST.to_seconds()) // 2


@dataclass(frozen=True, slots=True)
class WatchedQueue:
    """A queue with alarms. `name` is the prefix of their ids, `description` is shown to users."""

    name: str
    queue: sqs.IQueue
    description: str
    capability: Capability | None
    heading: str
    reader: str = "function"


@dataclass(frozen=True, slots=True)
class Watched:
    """The constructs of one site, with the parameters of operations."""

    constructs: Sequence[SiteConstruct]
    parameters: Parameters

    @property
    def stage(self) -> str | None:
        """The site's stage."""
        return self.parameters.stage

    @property
    def options(self) -> OperationsParameters:
        """The parameters about operations."""
        return self.parameters.operations

    @property
    def rendezvous(self) -> Rendezvous | None:
        """The site's rendezvous; None if it has none. The properties below are alike."""
        return next((construct for construct in self.constructs if isinstance(construct, Rendezvous)), None)

    @property
    def splitting(self) -> Splitting | None:
        """As `rendezvous`."""
        return next((construct for construct in self.constructs if isinstance(construct, Splitting)), None)

    @property
    def exchange(self) -> Exchange | None:
        """As `rendezvous`."""
        return next((construct for construct in self.constructs if isinstance(construct, Exchange)), None)

    @property
    def pipeline(self) -> LandingPipeline | None:
        """As `rendezvous`."""
        return next((construct for construct in self.constructs if isinstance(construct, LandingPipeline)), None)

    @property
    def pipeline_age_s(self) -> int:
        """The age in seconds from which messages of the land job's queue trigger an alarm."""
        is_streaming = self.pipeline is not None and self.pipeline.options.streaming
        return self.options.pipeline_age_s if is_streaming else UNSTREAMED_AGE_S

    def sources(self) -> Iterator[WatchedQueue]:
        """List the source and ingress queues. The offers queue has a rule of its own.

        Queues between functions are covered by the functions' errors and throttles. A source queue with re-pointed
        consumers is read by them while it is not split.
        """
        for queues in [] if self.splitting is None else self.splitting.queues:
            description, reader = f"source of {queues.parameters.queue_id}", "function" if queues.main else "consumer"
            yield WatchedQueue(
                f"{queues.id}Source", queues.source, description, Capability.SPLITTING, "SourceAge", reader
            )
        for ingress in [] if self.exchange is None else self.exchange.state.ingresses:
            publisher = ingress.exchange or ("of links" if ingress.from_links else "of publishers")
            description = f"ingress {publisher}{', FIFO' if ingress.fifo else ''}"
            yield WatchedQueue(ingress.id, ingress.queue, description, Capability.FEDERATION, "IngressAge")

    def dead_letters(self) -> Iterator[WatchedQueue]:
        """List the dead-letter queues."""
        listed: list[tuple[str, sqs.IQueue, str]] = []
        if self.rendezvous is not None:
            listed.append(("", self.rendezvous.state.dead_letters, "dead letters of the rendezvous"))
        if self.splitting is not None:
            listed.append(("Splitting", self.splitting.state.dead_letters, "dead letters of splitting"))
            listed += [
                (queues.id, queues.dead_letters, f"dead letters of {queues.parameters.queue_id}")
                for queues in self.splitting.queues
                if queues.dead_letters is not None
            ]
        if self.exchange is not None:
            state = self.exchange.state
            listed.append(("Federation", state.dead_letters, "dead letters of federation"))
            listed.append(("FederationFifo", state.fifo_dead_letters, "dead letters of federation, FIFO"))
        for prefix, queue, description in listed:
            yield WatchedQueue(f"{prefix}{DEAD_LETTERS}", queue, description, None, DEAD_LETTERS)
