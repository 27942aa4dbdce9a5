"""The rendezvous' clients: SQS as they ask for it, with their own credentials, and the access keys that they share.

IAM shows a secret once, when its key is made, and lets a user have two keys:
https://docs.aws.amazon.com/IAM/latest/UserGuide/id_credentials_access-keys.html
"""

import asyncio
import base64
import binascii
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Self, TypeVar

import boto3
from botocore.config import Config

from sluice.aws.clients import CONFIG, MAX_CONNECTIONS, calls
from sluice.aws.queues import SqsQueues
from sluice.errors import BadConfiguration, CallFailed, Malformed
from sluice.rendezvous.protocol.messages import read_object

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_sqs import SQSClient


MAX_KEYS = 2  # of a user, by IAM
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
        """Use this client and its credentials: `open_client` creates one."""
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
    """Create a boto3 client that acts as a rendezvous client; `endpoint_url` is the embedded cloud's."""
    # A session of its own: boto3's default one isn't safe to make clients with from threads.
    return boto3.session.Session(
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_key,
        region_name=region,
    ).client("sqs", endpoint_url=endpoint_url, config=ALONE)


class SecretUnknown(BadConfiguration):
    """The user has a key already, and its secret can't be read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """An access key as IAM describes it. `used` is true if IAM has recorded a request that was signed with it."""

    id: str
    active: bool
    created_at: datetime
    used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A new key, and the ids of the keys that were kept or deleted.

    `fault` is the call that failed once the new key was there. Its secret can't be had again, so it is given out first.
    """

    credentials: ClientCredentials
    deleted: Sequence[str] = ()
    kept: Sequence[str] = ()
    fault: CallFailed | None = None


@dataclass(frozen=True, slots=True)
class ClientUser:
    """The user, through a client. Every method may raise `CallFailed`."""

    client: "IAMClient"
    name: str

    def access_keys(self) -> list[AccessKey]:
        """Read all keys, the oldest first."""
        with calls("ListAccessKeys"):
            described = self.client.list_access_keys(UserName=self.name)["AccessKeyMetadata"]
        keys = [
            AccessKey(
                id=key["AccessKeyId"],
                active=key["Status"] == "Active",
                created_at=key["CreateDate"],
                used=self.was_used(key["AccessKeyId"]),
            )
            for key in described
        ]
        return sorted(keys, key=lambda key: key.created_at)

    def was_used(self, key_id: str) -> bool:
        """Return whether IAM has recorded a request that was signed with the key."""
        with calls("GetAccessKeyLastUsed"):
            return "LastUsedDate" in self.client.get_access_key_last_used(AccessKeyId=key_id)["AccessKeyLastUsed"]

    def create(self) -> ClientCredentials:
        """Create a new key."""
        with calls("CreateAccessKey"):
            key = self.client.create_access_key(UserName=self.name)["AccessKey"]
        return ClientCredentials(access_key_id=key["AccessKeyId"], secret_key=key["SecretAccessKey"])

    def delete(self, key_id: str) -> None:
        """Delete a key. AWS refuses requests with it from now on."""
        with calls("DeleteAccessKey"):
            self.client.delete_access_key(UserName=self.name, AccessKeyId=key_id)


def first_key(user: ClientUser) -> ClientCredentials:
    """Create the user's first key. Raises `SecretUnknown` if there is one."""
    keys = user.access_keys()
    if keys:
        raise SecretUnknown(
            f"{user.name} has the access key {keys[-1].id} of {keys[-1].created_at:%Y-%m-%d}, and IAM shows a secret "
            "only once: find the text you kept, or make a new key with --rotate"
        )
    return user.create()


def rotate(user: ClientUser, *, keep_previous: bool) -> Rotation:
    """Create a new key, then delete the others; with `keep_previous` one of them stays until the next rotation.

    Where IAM has no room for a new key, the one that clients miss least goes first, and another stays meanwhile: a user
    that had a valid key has one all the time, also where a call fails.
    """
    # Those that are switched off, then those that nobody ever used, then the oldest: a key that was made and never
    # given out must not push out the one that clients have.
    left = sorted(user.access_keys(), key=lambda key: (key.active, key.used, key.created_at))
    deleted = _delete_all(user, left[: len(left) - MAX_KEYS + 1])
    left = [key for key in left if key.id not in deleted]
    credentials = user.create()
    fault = None
    try:
        deleted += _delete_all(user, [] if keep_previous else left)
    except CallFailed as error:
        fault = error
    kept = [key.id for key in left if key.id not in deleted]
    return Rotation(credentials=credentials, deleted=deleted, kept=kept, fault=fault)


def revoke(user: ClientUser) -> list[str]:
    """Delete all keys, and so lock every client out. Returns the ids of those deleted."""
    return _delete_all(user, user.access_keys())


def _delete_all(user: ClientUser, keys: Sequence[AccessKey]) -> list[str]:
    for key in keys:
        user.delete(key.id)
    return [key.id for key in keys]


def sqscreds(credentials: ClientCredentials) -> str:
    """Write the text that clients are given, which `ClientCredentials.parse` reads."""
    fields = {"aws-access-key-id": credentials.access_key_id, "aws-secret-key": credentials.secret_key}
    return base64.b64encode(json.dumps(fields).encode()).decode()
