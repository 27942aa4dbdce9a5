"""The client for a set of queues: one place's, or where they are of several regions or roles one that routes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Self

from sluice_spark.sqs.access import CredentialsNow, Endpoint, Identity, credentials_of, resolved_endpoint
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.received import Message
from sluice_spark.sqs.transport import Room


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to call, and as whom."""

    endpoint: Endpoint
    identity: Identity


def clients_of(
    queue_urls: Sequence[str], *, region: str | None, endpoint: str | None, identity: Identity, connections: int
) -> Callable[[], SqsClient]:
    """Make clients of the queues, with `connections` for each region and role among them.

    Asks botocore once for each. Raises InvalidOption where nothing says a region, no key is found, or no role is of a
    queue's account.
    """
    places: dict[str, Place] = {}
    for queue_url in queue_urls:
        one = identity.at(queue_url)
        found = resolved_endpoint(queue_url, region=region, endpoint=endpoint, identity=one)
        places[queue_url] = Place(endpoint=found, identity=one)
    keys = {place: credentials_of(place.identity, region=place.endpoint.region) for place in places.values()}
    if len(keys) == 1:
        [(place, key)] = keys.items()
        return lambda: SqsClient(place.endpoint, key, connections=connections)
    return lambda: RoutedClient(places, keys, connections=connections)


class RoutedClient(SqsClient):
    """One client, as its callers see it: each call goes to the place of the queue that it is about.

    Every call is a receive or passes `call`; what these ask for, and warn of, is counted here.
    """

    def __init__(self, places: Mapping[str, Place], keys: Mapping[Place, CredentialsNow], *, connections: int) -> None:
        self.places, first = places, next(iter(keys))
        super().__init__(first.endpoint, keys[first], connections=connections)  # opens nothing: see `__aenter__`
        self._by_place = {place: SqsClient(place.endpoint, key, connections=connections) for place, key in keys.items()}
        self._by_queue = {queue_url: self._by_place[place] for queue_url, place in places.items()}
        for client in self._by_place.values():
            client.requests, client.retries = self.requests, self.retries
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for client in self._by_place.values():
            await self._open.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def receive(
        self,
        queue_url: str,
        *,
        wait_s: int,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
        room: Room | None = None,
    ) -> Sequence[Message]:
        """As SqsClient's."""
        client = self._by_queue[queue_url]
        return await client.receive(
            queue_url, wait_s=wait_s, visibility_s=visibility_s, attempt_id=attempt_id, room=room
        )

    async def call(self, action: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """As SqsClient's."""
        return await self._by_queue[request["QueueUrl"]].call(action, request)
