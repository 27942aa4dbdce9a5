"""The keys of the clients' user against IAM's rules, on moto: two keys at most, and a secret shown once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from moto import mock_aws

from sluice.aws.rendezvous.clients import (
    ClientCredentials,
    ClientUser,
    SecretUnknown,
    create_first_key,
    revoke_keys,
    rotate_keys,
    sqscreds,
)
from sluice.errors import CallFailed

NAME = "clients"


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClientUser]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        client = boto3.client("iam", region_name="eu-central-1")
        client.create_user(UserName=NAME)
        yield ClientUser(client, NAME)


def valid(user: ClientUser) -> list[str]:
    """Ids of the keys that clients could use, the oldest first."""
    return [key.id for key in user.access_keys() if key.active]


def use(credentials: ClientCredentials) -> None:
    """Signs one request, which IAM notes."""
    boto3.client(
        "sts",
        region_name="eu-central-1",
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_key,
    ).get_caller_identity()


def switch_off(user: ClientUser, key_id: str) -> None:
    user.client.update_access_key(UserName=NAME, AccessKeyId=key_id, Status="Inactive")


@dataclass
class Watched:
    """IAM that notes how many valid keys there are after every call, and fails the calls it is told to."""

    client: Any
    failing: str = ""

    def __post_init__(self) -> None:
        self.valid: list[int] = []

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            if name == self.failing:
                raise CallFailed(name, "AccessDenied", "told to")
            result = getattr(self.client, name)(**arguments)
            keys = self.client.list_access_keys(UserName=NAME)["AccessKeyMetadata"]
            self.valid.append(sum(key["Status"] == "Active" for key in keys))
            return result

        return call


def test_the_first_key_is_made_and_its_text_is_what_clients_read(user: ClientUser) -> None:
    credentials = create_first_key(user)
    assert valid(user) == [credentials.access_key_id]
    assert ClientCredentials.parse(sqscreds(credentials)) == credentials


def test_a_secret_that_nobody_can_know_again_is_not_replaced_unasked(user: ClientUser) -> None:
    credentials = create_first_key(user)
    with pytest.raises(SecretUnknown, match=f"{credentials.access_key_id}.*--rotate"):
        create_first_key(user)
    assert valid(user) == [credentials.access_key_id]


def test_a_rotation_leaves_only_the_new_key(user: ClientUser) -> None:
    old = create_first_key(user)
    rotation = rotate_keys(user, keep_previous=False)
    assert valid(user) == [rotation.credentials.access_key_id]
    assert (rotation.deleted, rotation.kept, rotation.fault) == ([old.access_key_id], [], None)


def test_a_rotation_without_any_key_makes_the_first(user: ClientUser) -> None:
    rotation = rotate_keys(user, keep_previous=False)
    assert valid(user) == [rotation.credentials.access_key_id]


def test_the_previous_key_stays_until_the_next_rotation(user: ClientUser) -> None:
    first = create_first_key(user)
    second = rotate_keys(user, keep_previous=True)
    assert valid(user) == [first.access_key_id, second.credentials.access_key_id]
    assert second.kept == [first.access_key_id]
    third = rotate_keys(user, keep_previous=False)
    assert valid(user) == [third.credentials.access_key_id]


def test_with_both_places_taken_and_used_the_older_key_goes(user: ClientUser) -> None:
    first = create_first_key(user)
    second = rotate_keys(user, keep_previous=True).credentials
    use(first)
    use(second)
    third = rotate_keys(user, keep_previous=True)
    assert third.deleted == [first.access_key_id]
    assert set(valid(user)) == {second.access_key_id, third.credentials.access_key_id}


def test_a_key_that_was_never_given_out_does_not_push_out_the_one_that_clients_have(user: ClientUser) -> None:
    used = create_first_key(user)
    use(used)
    unused = rotate_keys(user, keep_previous=True).credentials
    assert rotate_keys(user, keep_previous=True).deleted == [unused.access_key_id]
    assert used.access_key_id in valid(user)


def test_a_key_that_is_switched_off_goes_before_a_valid_one(user: ClientUser) -> None:
    old = create_first_key(user)
    off = rotate_keys(user, keep_previous=True).credentials
    use(off)
    switch_off(user, off.access_key_id)
    assert rotate_keys(user, keep_previous=True).deleted == [off.access_key_id]
    assert old.access_key_id in valid(user)


@pytest.mark.parametrize("keep_previous", [True, False])
@pytest.mark.parametrize("keys", [1, 2])
def test_at_no_time_is_there_no_valid_key_nor_a_third(user: ClientUser, keys: int, keep_previous: bool) -> None:
    for _ in range(keys):
        user.create_key()
    watched = Watched(user.client)
    rotate_keys(ClientUser(watched, NAME), keep_previous=keep_previous)  # type: ignore[arg-type]  # a client that is watched
    assert set(watched.valid) <= {1, 2}


def test_where_the_new_key_cannot_be_made_a_valid_one_is_left(user: ClientUser) -> None:
    create_first_key(user)
    rotate_keys(user, keep_previous=True)
    failing = ClientUser(Watched(user.client, failing="create_access_key"), NAME)  # type: ignore[arg-type]  # see above
    with pytest.raises(CallFailed):
        rotate_keys(failing, keep_previous=False)
    assert len(valid(user)) == 1


def test_a_new_secret_is_given_out_though_the_old_key_cannot_be_deleted(user: ClientUser) -> None:
    old = create_first_key(user)
    failing = ClientUser(Watched(user.client, failing="delete_access_key"), NAME)  # type: ignore[arg-type]  # see above
    rotation = rotate_keys(failing, keep_previous=False)
    assert rotation.fault is not None
    assert rotation.kept == [old.access_key_id]
    assert rotation.credentials.access_key_id in valid(user)


def test_revoking_leaves_no_key_and_again_does_nothing(user: ClientUser) -> None:
    create_first_key(user)
    rotate_keys(user, keep_previous=True)
    assert [len(revoke_keys(user)), len(revoke_keys(user))] == [2, 0]
    assert valid(user) == []


def test_a_user_that_is_not_there_is_told(user: ClientUser) -> None:
    with pytest.raises(CallFailed, match="NoSuchEntity"):
        create_first_key(ClientUser(user.client, "nobody"))
