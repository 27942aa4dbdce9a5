"""What stacks store for functions, as the functions read it: on moto, whose Systems Manager takes ten names at most."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from functions.bootstrap import read_parameters
from sluice.errors import BadSetting, CallFailed

REGION = "eu-central-1"


@pytest.fixture
def ssm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in (("AWS_DEFAULT_REGION", REGION), ("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")):
        monkeypatch.setenv(name, value)
    with mock_aws():
        yield boto3.client("ssm", region_name=REGION)  # its stubs aren't installed


def test_parts_are_put_together_in_the_order_of_their_names_and_not_of_the_answer(ssm: Any) -> None:
    names = [f"/stack/links/key/{place}" for place in range(10)]
    for place in reversed(range(10)):
        ssm.put_parameter(Name=names[place], Type="String", Value=f"{place} ")
    assert read_parameters(names) == "0 1 2 3 4 5 6 7 8 9 "


def test_a_part_that_is_missing_is_named_and_not_left_out(ssm: Any) -> None:
    ssm.put_parameter(Name="/stack/links/key/0", Type="String", Value="{")
    with pytest.raises(BadSetting, match="there is no parameter /stack/links/key/1"):
        read_parameters(["/stack/links/key/0", "/stack/links/key/1"])


def test_what_the_service_refuses_is_a_failed_call(ssm: Any) -> None:
    with pytest.raises(CallFailed, match="GetParameters"):
        read_parameters([f"/stack/links/key/{place}" for place in range(11)])
