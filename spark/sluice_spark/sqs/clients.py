"""The client for a set of queues: one place's, or where they are of several regions or roles one that routes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import orjson

from sluice_spark.errors import QueueBusy
from sluice_spark.sqs.access import CredentialsNow, Endpoint, Identity, credentials_of, resolved_endpoint
from sluice_spark.sqs.answers import HttpAnswer
from sluice_spark.sqs.client import Outcome, SqsClient
from sluice_spark.sqs.digests import is_intact
from sluice_spark.sqs.received import BATCH_LIMIT, Message
from sluice_spark.sqs.transport import Room

RECEIVE = "ReceiveMessage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to call, and as whom."""

    endpoint: Endpoint
    identity: Identity


def clients_of(
    queue_urls: Sequence[str],
    *,
    region: str | None,
    endpoint: str | None,
    identity: Identity,
    connections: int,
    check_md5: bool = False,
) -> Callable[[], SqsClient]:
    """Make clients of the queues, with `connections` for each region and role among them.

    `check_md5`: of what they receive. Asks botocore once for each place. Raises InvalidOption where nothing says a
    region, no key is found, or no role is of a queue's account.
    """
    places: dict[str, Place] = {}
    for queue_url in queue_urls:
        one = identity.at(queue_url)
        found = resolved_endpoint(queue_url, region=region, endpoint=endpoint, identity=one)
        places[queue_url] = Place(endpoint=found, identity=one)
    keys = {place: credentials_of(place.identity, region=place.endpoint.region) for place in places.values()}
    kind = CheckingClient if check_md5 else SqsClient
    if len(keys) == 1:
        [(place, key)] = keys.items()
        return lambda: kind(place.endpoint, key, connections=connections)
    return lambda: RoutedClient(places, keys, connections=connections, kind=kind)


class CheckingClient(SqsClient):
    """Receives only what is as SQS sent it, by its MD5; the rest stays in the queue, and comes again."""

    def _accepted(self, action: str, body: bytes, answer: HttpAnswer) -> HttpAnswer:
        if action != RECEIVE:
            return answer
        try:
            messages = orjson.loads(answer.body or b"{}").get("Messages") or []
        except (ValueError, AttributeError):
            return answer  # who reads it says what is wrong with it
        intact = [message for message in messages if is_intact(message)]
        if len(intact) == len(messages):
            return answer
        damaged = QueueBusy(action, "Md5Mismatch", f"{len(messages) - len(intact)} of {len(messages)} messages")
        # A FIFO queue's go on in order: all of them come again to a receive with the same id
        if not intact or b"ReceiveRequestAttemptId" in body:
            raise damaged
        self.retries[damaged.code] += 1
        self._warnings.say(f"{action}:{damaged.code}", damaged)
        return msgspec.structs.replace(answer, body=orjson.dumps({"Messages": intact}))


class RoutedClient(SqsClient):
    """One client, as its callers see it: each call goes to the place of the queue that it is about.

    Every call is a receive or passes `asked`; what these ask for, and warn of, is counted here.
    """

    def __init__(
        self,
        places: Mapping[str, Place],
        keys: Mapping[Place, CredentialsNow],
        *,
        connections: int,
        kind: type[SqsClient] = SqsClient,
    ) -> None:
        self.places, first = places, next(iter(keys))
        super().__init__(first.endpoint, keys[first], connections=connections)  # opens nothing: see `__aenter__`
        self._by_place = {place: kind(place.endpoint, key, connections=connections) for place, key in keys.items()}
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
        most: int = BATCH_LIMIT,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
        room: Room | None = None,
    ) -> Sequence[Message]:
        """As SqsClient's."""
        client = self._by_queue[queue_url]
        return await client.receive(
            queue_url, wait_s=wait_s, most=most, visibility_s=visibility_s, attempt_id=attempt_id, room=room
        )

    async def asked(
        self, action: str, request: Mapping[str, Any], read: Callable[[str, HttpAnswer], Outcome]
    ) -> Outcome:
        """As SqsClient's."""
        return await self._by_queue[request["QueueUrl"]].asked(action, request, read)
