"""SQS as a rendezvous client asks for it, with the client's own credentials."""

import asyncio
import base64
import binascii
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

import boto3
from botocore.config import Config

from sluice.aws.clients import CONFIG, MAX_CONNECTIONS, calls
from sluice.aws.queues import SqsQueues
from sluice.errors import Malformed
from sluice.rendezvous.protocol.messages import read_object

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient

T = TypeVar("T")

# Nobody delivers a client's call again where it fails: a function's message comes again, a client's isn't there yet.
ALONE = CONFIG.merge(Config(retries={"mode": "standard", "total_max_attempts": 6}))


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """An access key, as clients are given it in the text `sqscreds`."""

    access_key_id: str
    secret_key: str

    @classmethod
    def parse(cls, sqscreds: str) -> "ClientCredentials":
        """Read padded standard base64 of the JSON of both. Raises `Malformed`."""
        try:
            text = base64.b64decode(sqscreds, validate=True)
        except binascii.Error as error:
            raise Malformed(f"sqscreds: {error}") from None
        fields = read_object(text, {"aws-access-key-id": str, "aws-secret-key": str})
        if len(fields) != len({"aws-access-key-id", "aws-secret-key"}):
            raise Malformed("sqscreds: no access key id or no secret key")
        return cls(access_key_id=fields["aws-access-key-id"], secret_key=fields["aws-secret-key"])


class ClientQueues:
    """The three calls of a client, in threads of its own: a long poll holds one for up to 20 s.

    One serves any number of clients, `MAX_CONNECTIONS` calls at a time. As a context it lets its threads go at the
    end; a call under way isn't interrupted.
    """

    def __init__(self, client: "SQSClient", offers_queue_url: str) -> None:
        """Take a client that has the credentials to use: `open_client` makes one."""
        self._client = client
        self._queues = SqsQueues(client, offers_queue_url)
        self._offers_queue_url = offers_queue_url
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, thread_name_prefix="client-queues")

    async def send_offer(self, client_id: str, body: str) -> None:
        """Send to the offers queue, with the String attribute `ClientID`. Raises `QueueGone` or `CallFailed`."""
        await self._in_thread(
            lambda: self._queues.send(self._offers_queue_url, body, attributes={"ClientID": client_id})
        )

    async def queue_url(self, name: str) -> str:
        """Look up the URL of the queue with this name. Raises `QueueGone` or `CallFailed`."""

        def look_up() -> str:
            with calls("GetQueueUrl", queue=name):
                return self._client.get_queue_url(QueueName=name)["QueueUrl"]

        return await self._in_thread(look_up)

    async def receive(self, queue_url: str, *, wait_s: int) -> str | None:
        """Read one message's body, waiting up to `wait_s`; it isn't deleted. Raises `QueueGone` or `CallFailed`."""
        return await self._in_thread(lambda: self._queues.receive(queue_url, wait_s=wait_s))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def open_client(credentials: ClientCredentials, *, region: str, endpoint_url: str | None = None) -> "SQSClient":
    """Make a boto3 client that acts as a rendezvous client; `endpoint_url` is the embedded cloud's."""
    # A session of its own: boto3's default one isn't safe to make clients with from threads.
    return boto3.session.Session(
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_key,
        region_name=region,
    ).client("sqs", endpoint_url=endpoint_url, config=ALONE)
