"""Puts the broker function together: adapters, clock and randomness, from its settings."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec.structs import replace

from sluice.aws.clients import new_id, now_ms, sqs_client
from sluice.aws.dead_letters import OFFER_KEPT, DeadLetters
from sluice.aws.queues import ReceivedQueues
from sluice.aws.records import Reporter
from sluice.aws.rendezvous.meeting import Meeting
from sluice.message import Message
from sluice.rendezvous.broker import Broker
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.matchmaker import Matchmaker
from sluice.rendezvous.pacing import Pacing
from sluice.rendezvous.protocol.bridges import by_fingerprint
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from sluice.rendezvous.settings import BrokerSettings
from sluice.stages import staged

BATCH = 10  # records of an event, each served in a thread of its own
AT_ONCE = 3  # calls for one of them
CLIENT_ID = "ClientID"


class BrokerParts(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment of the broker function keeps between its batches. `matchmaker` makes one for a batch."""

    broker: Broker
    matchmaker: Callable[[int], Matchmaker]
    pacing: Pacing
    recorder: EventRecorder
    reporter: Reporter

    @classmethod
    def make(cls, settings: BrokerSettings) -> "BrokerParts":
        """Put together what the settings ask for, with AWS behind it."""
        meeting = Meeting.of(settings, threads=BATCH * AT_ONCE)
        return cls(
            broker=Broker(
                offers=meeting.offers,
                queues=meeting.queues,
                bridges=by_fingerprint(settings.bridges),
                recorder=meeting.recorder,
                persistence=meeting.persistence,
                executor=meeting.executor,
                now_ms=now_ms,
                new_id=new_id,
                answer_prefix=staged(ANSWER_QUEUE_PREFIX, settings.stage),
            ),
            matchmaker=lambda offers_due: meeting.matchmaker(offers_due=offers_due),
            pacing=meeting.pacing,
            recorder=meeting.recorder,
            reporter=Reporter(
                dead_letters=DeadLetters(sqs_client(), settings.dead_letters_url, without_description),
                executor=ThreadPoolExecutor(BATCH),
                received=ReceivedQueues(sqs_client(), settings.dead_letters_url),
            ),
        )


def without_description(message: Message) -> Message:
    """Say of an offer what its dead letter keeps: whose it is, and how long. Its description has addresses."""
    client_id = {name: value for name, value in message.attributes.items() if name == CLIENT_ID}
    return replace(message, body=OFFER_KEPT.format(len(message.body)), attributes=client_id)
