"""The splitter's triggers are switched, and what Lambda says while it changes one is no answer."""

from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from sluice.aws.splitting.consumers.lambda_functions import LambdaSplitterTriggers
from sluice.errors import CallFailed

ID = "0a1b2c3d-0000-4000-8000-000000000000"


@pytest.fixture
def client() -> Any:
    return boto3.client("lambda", region_name="eu-central-1", aws_access_key_id="a", aws_secret_access_key="b")


@pytest.mark.parametrize(
    ("state", "is_on"),
    [("Enabled", True), ("Disabled", False), ("Enabling", None), ("Disabling", None), ("Creating", None)],
)
def test_a_trigger_is_on_or_off_or_changing(client: Any, state: str, is_on: bool | None):
    with Stubber(client) as stubber:
        stubber.add_response("get_event_source_mapping", {"State": state}, {"UUID": ID})
        assert LambdaSplitterTriggers(lambda: client).is_on(ID) is is_on


@pytest.mark.parametrize("on", [True, False])
def test_a_trigger_is_switched(client: Any, on: bool):
    with Stubber(client) as stubber:
        stubber.add_response("update_event_source_mapping", {}, {"UUID": ID, "Enabled": on})
        LambdaSplitterTriggers(lambda: client).switch(ID, on=on)
        stubber.assert_no_pending_responses()


def test_a_trigger_in_use_is_switched_later(client: Any):
    with Stubber(client) as stubber:
        stubber.add_client_error("update_event_source_mapping", "ResourceInUseException")
        with pytest.raises(CallFailed, match="ResourceInUseException"):
            LambdaSplitterTriggers(lambda: client).switch(ID, on=True)
