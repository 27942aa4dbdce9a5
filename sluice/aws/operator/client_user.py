"""The access keys of the one IAM user whose credentials clients share: made, rotated, revoked.

IAM shows a secret once, when its key is made, and lets a user have two keys:
https://docs.aws.amazon.com/IAM/latest/UserGuide/id_credentials_access-keys.html
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sluice.aws.clients import calls
from sluice.aws.operator.client_queues import ClientCredentials
from sluice.errors import BadConfiguration, CallFailed

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_iam import IAMClient

MAX_KEYS = 2  # of a user, by IAM


class SecretUnknown(BadConfiguration):
    """There is a key already, and nobody can read its secret again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """What IAM tells of a key. `used` says whether anyone ever signed with it, as far as IAM knows by now."""

    id: str
    active: bool
    created_at: datetime
    used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A new key, and what became of the others, by id.

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
            found = self.client.list_access_keys(UserName=self.name)["AccessKeyMetadata"]
        keys = [
            AccessKey(
                id=key["AccessKeyId"],
                active=key["Status"] == "Active",
                created_at=key["CreateDate"],
                used=self.was_used(key["AccessKeyId"]),
            )
            for key in found
        ]
        return sorted(keys, key=lambda key: key.created_at)

    def was_used(self, key_id: str) -> bool:
        """Say whether anyone ever signed with it, as far as IAM knows by now."""
        with calls("GetAccessKeyLastUsed"):
            return "LastUsedDate" in self.client.get_access_key_last_used(AccessKeyId=key_id)["AccessKeyLastUsed"]

    def create(self) -> ClientCredentials:
        """Make a new key."""
        with calls("CreateAccessKey"):
            key = self.client.create_access_key(UserName=self.name)["AccessKey"]
        return ClientCredentials(access_key_id=key["AccessKeyId"], secret_key=key["SecretAccessKey"])

    def delete(self, key_id: str) -> None:
        """Delete a key: who uses it is refused from now on."""
        with calls("DeleteAccessKey"):
            self.client.delete_access_key(UserName=self.name, AccessKeyId=key_id)


def first_key(user: ClientUser) -> ClientCredentials:
    """Make the user's first key. Raises `SecretUnknown` where there is one."""
    keys = user.access_keys()
    if keys:
        raise SecretUnknown(
            f"{user.name} has the access key {keys[-1].id} of {keys[-1].created_at:%Y-%m-%d}, and IAM shows a secret "
            "only once: find the text you kept, or make a new key with --rotate"
        )
    return user.create()


def rotate(user: ClientUser, *, keep_previous: bool) -> Rotation:
    """Make a new key, then delete the others; with `keep_previous` one of them stays until the next rotation.

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
