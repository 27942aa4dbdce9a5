"""Puts the sweeper function together: adapters and clock, from its settings."""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

import msgspec

from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, now_ms, sqs_client
from sluice.aws.rendezvous.mailboxes import DynamoMailboxStore
from sluice.aws.rendezvous.meeting import Meeting
from sluice.aws.rendezvous.standing import depth_of, recent_offers, waiting_proxies
from sluice.rendezvous.operations import RendezvousView, ShowRendezvous
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from sluice.rendezvous.settings import MeetingSettings
from sluice.rendezvous.sweeper import Sweeper
from sluice.stages import staged


class SweeperParts(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment of the sweeper function keeps between its sweeps."""

    meeting: Meeting
    mailboxes: DynamoMailboxStore
    executor: Executor
    answer_prefix: str

    @classmethod
    def make(cls, settings: MeetingSettings) -> "SweeperParts":
        """Put together what the settings ask for, with AWS behind it."""
        return cls(
            meeting=Meeting.of(settings, threads=1),
            mailboxes=DynamoMailboxStore(dynamodb_client(), settings.table),
            executor=ThreadPoolExecutor(MAX_CONNECTIONS),
            answer_prefix=staged(ANSWER_QUEUE_PREFIX, settings.stage),
        )

    def sweeper(self, *, may_go_on: Callable[[], bool], answers_age_ms: int) -> Sweeper:
        """Make one for one sweep."""
        return Sweeper(
            offers=self.meeting.offers,
            waiting=self.meeting.waiting,
            mailboxes=self.mailboxes,
            queues=self.meeting.queues,
            pacing=self.meeting.pacing,
            executor=self.executor,
            now_ms=now_ms,
            may_go_on=may_go_on,
            answer_prefix=self.answer_prefix,
            answers_age_ms=answers_age_ms,
        )

    def show(self, asked: ShowRendezvous) -> RendezvousView:
        """Look. Raises `CallFailed`, also for a queue that the function may not look at."""
        at_ms, sqs = now_ms(), sqs_client()
        depths = self.executor.map(lambda url: depth_of(sqs, url), asked.queues)
        return RendezvousView(
            waiting=waiting_proxies(self.meeting.pools, shards=self.meeting.pacing.pace().shards, now_ms=at_ms),
            recent_offers=recent_offers(self.meeting.offers, now_ms=at_ms),
            held=dict(zip(asked.queues, depths, strict=True)),
        )
