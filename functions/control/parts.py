"""Puts the control function together: adapters, clock and ids, from its settings."""

import secrets
import string
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import msgspec
from aws_lambda_powertools.logging import Logger

from sluice.aws.clients import dynamodb_client, lambda_client, make_client, now_ms, queue_arn_prefix, sqs_client
from sluice.aws.dead_letters import DeadLetters
from sluice.aws.queues import ReceivedQueues, SqsQueues
from sluice.aws.records import Reporter
from sluice.aws.splitting.consumers.lambda_functions import LambdaSplitterTriggers
from sluice.aws.splitting.consumers.targets import AwsConsumers, EksClusters
from sluice.aws.splitting.queues import SplitQueues
from sluice.aws.splitting.registry_store import DynamoRegistryStore
from sluice.codec import encode
from sluice.splitting.consumers.temporary_queues import TOKEN_CHARACTERS
from sluice.splitting.control import Control, KnownRegistry, next_tick_s
from sluice.splitting.jq_runner import compile_problem
from sluice.splitting.operations import TickSessions
from sluice.splitting.performer import Performer
from sluice.splitting.pointing import Pointing
from sluice.splitting.settings import ControlSettings

logger = Logger()
client_of = cache(make_client)  # by service, each when a target needs it
clusters = EksClusters(client=client_of)  # asked when a target needs one
ALPHABET = string.ascii_lowercase + string.digits
TICK = encode(TickSessions()).decode()


class ControlParts(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment of the control function keeps between its invocations."""

    settings: ControlSettings
    known: KnownRegistry
    queues: SplitQueues
    messages: SqsQueues
    reporter: Reporter

    @classmethod
    def make(cls, settings: ControlSettings) -> "ControlParts":
        """With AWS behind it."""
        return cls(
            settings=settings,
            known=KnownRegistry(DynamoRegistryStore(dynamodb_client(), settings.table)),
            queues=SplitQueues(sqs_client(), settings.dead_letters_url),
            messages=SqsQueues(sqs_client(), settings.dead_letters_url),
            reporter=Reporter(
                dead_letters=DeadLetters(sqs_client(), settings.dead_letters_url),
                executor=ThreadPoolExecutor(1),  # its messages are about one registry: side by side they'd lose races
                received=ReceivedQueues(sqs_client(), settings.dead_letters_url),
            ),
        )

    def control(self, *, may_go_on: Callable[[], bool]) -> Control:
        """For one invocation."""
        return Control(
            known=self.known,
            queues=self.queues,
            pointing=Pointing(
                repointed={each.queue_id: each for each in self.settings.repointed},
                consumers=AwsConsumers(
                    client=client_of,
                    arn_prefix=queue_arn_prefix(self.settings.dead_letters_url),
                    now_ms=now_ms,
                    cluster=clusters,
                ),
                triggers=LambdaSplitterTriggers(lambda_client),
                holder=new_token(),
                now_ms=now_ms,
                warn=warn,
            ),
            configs=self.settings.by_id,
            deployment=self.settings.deployment,
            now_ms=now_ms,
            new_token=new_token,
            may_go_on=may_go_on,
            counts_settle_ms=self.settings.counts_settle_s * 1000,
            policies=self.settings.policies,
        )

    def performer(self, control: Control) -> Performer:
        """Perform what is asked of it."""
        return Performer(
            control=control, compile_problem=compile_problem, counts=self.known.store.counts, url=self.queues.url
        )

    def arm_tick(self) -> None:
        """Sees to it that the registry is looked at again in time."""
        delay_s = next_tick_s(self.known.load())
        if delay_s is None:
            return
        at_ms = now_ms()
        if self.known.store.claim_tick(due_at_ms=at_ms + delay_s * 1000, now_ms=at_ms):
            self.messages.send(self.settings.control_queue_url, TICK, delay_s=delay_s)


def warn(what: str, queue_id: str, reason: str) -> None:
    """Log what became of a consumer that is re-pointed."""
    logger.warning(what, queue=queue_id, reason=reason)


def new_token() -> str:
    """Twelve letters and digits: 62 bits."""
    return "".join(secrets.choice(ALPHABET) for _ in range(TOKEN_CHARACTERS))
