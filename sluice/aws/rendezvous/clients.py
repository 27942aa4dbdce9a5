"""Makes the SQS requests of rendezvous clients, and manages the IAM access keys that all clients share.

IAM shows a secret only once, when its key is created, and lets a user have two keys:
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
from typing import Self, TypeVar

import boto3
from botocore.config import Config

from sluice.aws.client_types import IAMClient, SQSClient
from sluice.aws.clients import CONFIG, MAX_CONNECTIONS, calls
from sluice.aws.queues import SqsQueues
from sluice.errors import BadConfiguration, CallFailed, Malformed
from sluice.rendezvous.protocol.messages import read_object

MAX_KEYS = 2  # IAM's limit of access keys per user
T = TypeVar("T")

# SQS redelivers a function's message but not a client's request, so clients' requests are retried more often.
ALONE = CONFIG.merge(Config(retries={"mode": "standard", "total_max_attempts": 6}))


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """An access key. Clients receive it as the text `sqscreds`."""

    access_key_id: str
    secret_key: str

    @classmethod
    def parse(cls, sqscreds: str) -> "ClientCredentials":
        """Parse `sqscreds`: padded standard base64 of a JSON object with a key's id and secret. Raises `Malformed`."""
        try:
            text = base64.b64decode(sqscreds, validate=True)
        except binascii.Error as error:
            raise Malformed(f"sqscreds: {error}") from None
        fields = read_object(text, {"aws-access-key-id": str, "aws-secret-key": str})
        if len(fields) != len({"aws-access-key-id", "aws-secret-key"}):
            raise Malformed("sqscreds: no access key id or no secret key")
        return cls(access_key_id=fields["aws-access-key-id"], secret_key=fields["aws-secret-key"])


class ClientQueues:
    """Makes clients' SQS requests in its own threads, because a long poll occupies a thread for up to 20 s.

    One object serves any number of clients, with at most `MAX_CONNECTIONS` calls at a time. Use it as an async context
    manager: on exit it cancels queued calls but doesn't interrupt running calls.
    """

    def __init__(self, client: SQSClient, offers_queue_url: str) -> None:
        """Use this boto3 client and its credentials; `open_client` creates such a client."""
        self._client = client
        self._queues = SqsQueues(client, offers_queue_url)
        self._offers_queue_url = offers_queue_url
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, thread_name_prefix="client-queues")

    async def send_offer(self, client_id: str, body: str) -> None:
        """Send an offer to the offers queue, with the attribute `ClientID`. Raises `QueueGone` or `CallFailed`."""
        await self._run_in_thread(
            lambda: self._queues.send(self._offers_queue_url, body, attributes={"ClientID": client_id})
        )

    async def queue_url(self, name: str) -> str:
        """Look up the URL of the queue with this name. Raises `QueueGone` or `CallFailed`."""

        def find_url() -> str:
            with calls("GetQueueUrl", queue=name):
                return self._client.get_queue_url(QueueName=name)["QueueUrl"]

        return await self._run_in_thread(find_url)

    async def receive(self, queue_url: str, *, wait_s: int) -> str | None:
        """Receive one message's body, waiting up to `wait_s` seconds. Raises `QueueGone` or `CallFailed`."""
        return await self._run_in_thread(lambda: self._queues.receive(queue_url, wait_s=wait_s))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def open_client(credentials: ClientCredentials, *, region: str, endpoint_url: str | None = None) -> SQSClient:
    """Create a boto3 client with a rendezvous client's credentials. `endpoint_url` is the embedded cloud's, if any."""
    # boto3's default session can't create clients safely in several threads, so each client gets a session of its own.
    return boto3.session.Session(
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_key,
        region_name=region,
    ).client("sqs", endpoint_url=endpoint_url, config=ALONE)


class SecretUnknown(BadConfiguration):
    """The IAM user has an access key already, and the secret of an existing key can't be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """An access key as IAM describes it. `was_used`: IAM has recorded a request that was signed with this key."""

    id: str
    active: bool
    created_at: datetime
    was_used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A new access key, and the ids of the keys that were kept or deleted. `fault` is the error of a failed deletion.

    The new key is returned even after a failed deletion, because its secret can't be read again.
    """

    credentials: ClientCredentials
    deleted: Sequence[str] = ()
    kept: Sequence[str] = ()
    fault: CallFailed | None = None


@dataclass(frozen=True, slots=True)
class ClientUser:
    """The IAM user that all clients share. Every method may raise `CallFailed`."""

    client: IAMClient
    name: str

    def access_keys(self) -> list[AccessKey]:
        """List the user's access keys, the oldest first."""
        with calls("ListAccessKeys"):
            described = self.client.list_access_keys(UserName=self.name)["AccessKeyMetadata"]
        keys = [
            AccessKey(
                id=key["AccessKeyId"],
                active=key["Status"] == "Active",
                created_at=key["CreateDate"],
                was_used=self.was_used(key["AccessKeyId"]),
            )
            for key in described
        ]
        return sorted(keys, key=lambda key: key.created_at)

    def was_used(self, key_id: str) -> bool:
        """Return whether IAM has recorded a request that was signed with this access key."""
        with calls("GetAccessKeyLastUsed"):
            return "LastUsedDate" in self.client.get_access_key_last_used(AccessKeyId=key_id)["AccessKeyLastUsed"]

    def create_key(self) -> ClientCredentials:
        """Create an access key, and return its id and secret."""
        with calls("CreateAccessKey"):
            key = self.client.create_access_key(UserName=self.name)["AccessKey"]
        return ClientCredentials(access_key_id=key["AccessKeyId"], secret_key=key["SecretAccessKey"])

    def delete_key(self, key_id: str) -> None:
        """Delete an access key. From then on, AWS refuses requests that are signed with it."""
        with calls("DeleteAccessKey"):
            self.client.delete_access_key(UserName=self.name, AccessKeyId=key_id)


def create_first_key(user: ClientUser) -> ClientCredentials:
    """Create the user's first access key. Raises `SecretUnknown` if the user has a key already."""
    keys = user.access_keys()
    if keys:
        raise SecretUnknown(
            f"{user.name} has the access key {keys[-1].id} of {keys[-1].created_at:%Y-%m-%d}, and IAM shows a secret "
            "only once: find the text you kept, or make a new key with --rotate"
        )
    return user.create_key()


def rotate_keys(user: ClientUser, *, keep_previous: bool) -> Rotation:
    """Create a new key, then delete the others; with `keep_previous`, one old key stays until the next rotation.

    If the user already has two keys, IAM's limit, the less used one is deleted before the new key is created. The other
    key stays until then, so the user always has a valid key, even if a call fails.
    """
    # Delete inactive keys first, then unused ones, then the oldest: a key that was created but never given to clients
    # must not displace the key that clients have.
    left = sorted(user.access_keys(), key=lambda key: (key.active, key.was_used, key.created_at))
    deleted = _delete_all(user, left[: len(left) - MAX_KEYS + 1])
    left = [key for key in left if key.id not in deleted]
    credentials = user.create_key()
    fault = None
    try:
        deleted += _delete_all(user, [] if keep_previous else left)
    except CallFailed as error:
        fault = error
    kept = [key.id for key in left if key.id not in deleted]
    return Rotation(credentials=credentials, deleted=deleted, kept=kept, fault=fault)


def revoke_keys(user: ClientUser) -> list[str]:
    """Delete all access keys, so that no client can connect. Returns the ids of the deleted keys."""
    return _delete_all(user, user.access_keys())


def _delete_all(user: ClientUser, keys: Sequence[AccessKey]) -> list[str]:
    for key in keys:
        user.delete_key(key.id)
    return [key.id for key in keys]


def to_aws_queue_url(url: str, *, region: str) -> str:
    """Return a queue's URL in AWS's form, from which Snowflake's client reads the region."""
    account, name = url.rsplit("/", 2)[1:]
    return url if ".amazonaws.com" in url else f"https://sqs.{region}.amazonaws.com/{account}/{name}"


def write_bridge_line(
    credentials: ClientCredentials, *, queue_url: str, fingerprint: str, stun_urls: Sequence[str]
) -> str:
    """Write the bridge line that users paste into apps with Snowflake's client. Its address is a placeholder."""
    arguments = {
        "fingerprint": fingerprint,
        "sqsqueue": queue_url,
        "sqscreds": sqscreds(credentials),
        "ice": ",".join(stun_urls),
        "utls-imitate": "hellorandomizedalpn",
    }
    return f"snowflake 192.0.2.5:80 {fingerprint} {' '.join(f'{name}={text}' for name, text in arguments.items())}"


def sqscreds(credentials: ClientCredentials) -> str:
    """Write the credentials as the text that clients receive; `ClientCredentials.parse` reads it."""
    fields = {"aws-access-key-id": credentials.access_key_id, "aws-secret-key": credentials.secret_key}
    return base64.b64encode(json.dumps(fields).encode()).decode()
