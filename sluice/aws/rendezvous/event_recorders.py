"""Puts a function's witness together, and publishes what it noted."""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.aws.clients import dynamodb_client
from sluice.aws.clock import new_id, now_ms
from sluice.aws.rendezvous.address_keys import AddressHashes, DynamoAddressKeys
from sluice.aws.rendezvous.event_publisher import NOT_PUBLISHED, EventPublisher
from sluice.rendezvous.countries import Countries
from sluice.rendezvous.event_recorder import Witness
from sluice.rendezvous.settings import EventSettings

BUNDLE = Path(__file__).parents[3]  # where a database of countries is, beside our code
TRACE_VARIABLE = "_X_AMZN_TRACE_ID"  # Lambda sets it for every invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnesses:
    """What an environment keeps for its witnesses. Without a publisher, what they noted is forgotten."""

    publisher: EventPublisher | None
    country_of: Callable[[str], str]
    hash_of: Callable[[str], str | None]

    @classmethod
    def make(cls, settings: EventSettings | None, *, table: str) -> "Witnesses":
        """With AWS behind it. Without settings nothing is looked up."""
        if settings is None:
            return cls(publisher=None, country_of=Countries().of, hash_of=lambda _: None)
        file = str(BUNDLE / settings.geoip_file) if settings.geoip_file else None
        return cls(
            publisher=EventPublisher(exchange=settings.exchange, ingress_url=settings.ingress_url, site=settings.site),
            country_of=Countries(file).of,
            hash_of=AddressHashes(DynamoAddressKeys(dynamodb_client(), table), now_ms).of,
        )

    def witness(self) -> Witness:
        """For one invocation."""
        return Witness(country_of=self.country_of, hash_of=self.hash_of, trace=_trace, now_ms=now_ms, new_id=new_id)

    def publish(self, witness: Witness) -> Counter[str]:
        """Publishes what the witness noted; metrics, where there is something to count."""
        lost = self.publisher.publish(witness.take()) if self.publisher else 0
        return Counter({NOT_PUBLISHED: lost} if lost else {})


def _trace() -> str | None:
    return os.environ.get(TRACE_VARIABLE) or None
