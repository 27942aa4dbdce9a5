"""What operations watch: the constructs of a site, and the queues of theirs that alarms and the dashboard are about."""

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

# Where the land job runs from time to time, what waits may be old, but not lost.
UNSTREAMED_AGE_S = int(LONGEST.to_seconds()) // 2


@dataclass(frozen=True, slots=True)
class WatchedQueue:
    """A queue under the name that its alarm's id has, and as people are told of it."""

    name: str
    queue: sqs.IQueue
    told: str
    capability: Capability | None
    heading: str
    reader: str = "function"


@dataclass(frozen=True, slots=True)
class Watched:
    """The constructs of one site, with the parameters that operations have."""

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
        """The one that is watched, if one is; so with the others."""
        return next((each for each in self.constructs if isinstance(each, Rendezvous)), None)

    @property
    def splitting(self) -> Splitting | None:
        """See above."""
        return next((each for each in self.constructs if isinstance(each, Splitting)), None)

    @property
    def exchange(self) -> Exchange | None:
        """See above."""
        return next((each for each in self.constructs if isinstance(each, Exchange)), None)

    @property
    def pipeline(self) -> LandingPipeline | None:
        """See above."""
        return next((each for each in self.constructs if isinstance(each, LandingPipeline)), None)

    @property
    def pipeline_age_s(self) -> int:
        """How old the messages of the land job's queue may be."""
        is_streaming = self.pipeline is not None and self.pipeline.options.streaming
        return self.options.pipeline_age_s if is_streaming else UNSTREAMED_AGE_S

    def sources(self) -> Iterator[WatchedQueue]:
        """List what users and peers send and our functions read, but for offers.

        What waits there for long isn't being looked after. What functions send to functions is watched by their errors
        and throttles. A source whose consumers are re-pointed is theirs while nothing is split.
        """
        for queues in [] if self.splitting is None else self.splitting.queues:
            told, reader = f"source of {queues.parameters.queue_id}", "function" if queues.main else "consumer"
            yield WatchedQueue(f"{queues.id}Source", queues.source, told, Capability.SPLITTING, "SourceAge", reader)
        for ingress in [] if self.exchange is None else self.exchange.state.ingresses:
            of = ingress.exchange or ("of links" if ingress.from_links else "of publishers")
            told = f"ingress {of}{', FIFO' if ingress.fifo else ''}"
            yield WatchedQueue(ingress.id, ingress.queue, told, Capability.FEDERATION, "IngressAge")

    def dead_letters(self) -> Iterator[WatchedQueue]:
        """List the queues of dead letters."""
        found: list[tuple[str, sqs.IQueue, str]] = []
        if self.rendezvous is not None:
            found.append(("", self.rendezvous.state.dead_letters, "dead letters of the rendezvous"))
        if self.splitting is not None:
            found.append(("Splitting", self.splitting.state.dead_letters, "dead letters of splitting"))
            found += [
                (queues.id, queues.dead_letters, f"dead letters of {queues.parameters.queue_id}")
                for queues in self.splitting.queues
                if queues.dead_letters is not None
            ]
        if self.exchange is not None:
            state = self.exchange.state
            found.append(("Federation", state.dead_letters, "dead letters of federation"))
            found.append(("FederationFifo", state.fifo_dead_letters, "dead letters of federation, FIFO"))
        for of, queue, told in found:
            yield WatchedQueue(f"{of}{DEAD_LETTERS}", queue, told, None, DEAD_LETTERS)
