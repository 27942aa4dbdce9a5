"""Event source mappings keep their port's promises: through a stubbed Lambda client, and the fake beside it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from sluice.aws.federation.mappings import WINDOW_S, BridgeMappings, enable_peer_mappings
from sluice.aws_rules import MAX_UNWINDOWED_BATCH
from sluice.errors import CallFailed
from sluice.federation.links.links import MappingScaling
from tests.federation_fakes import FakeMappings

PREFIX = "arn:aws:sqs:eu-central-1:123456789012:"
ONE, TWO = "a" * 36, "b" * 36  # as long as Lambda's ids


@dataclass
class Scripted:
    """An adapter whose client's answers are given beforehand; botocore checks every request against its own model."""

    client: Any = field(
        default_factory=lambda: boto3.client(
            "lambda", region_name="eu-central-1", aws_access_key_id="test", aws_secret_access_key="test"
        )
    )

    def __post_init__(self) -> None:
        self.stub = Stubber(self.client)
        self.stub.activate()

    @property
    def mappings(self) -> BridgeMappings:
        return BridgeMappings(client=self.client, function_name="bridge", arn_prefix=PREFIX)

    def listed(self, *mappings: dict[str, Any]) -> None:
        self.stub.add_response(
            "list_event_source_mappings",
            {"EventSourceMappings": list(mappings)},
            {"EventSourceArn": ANY, "FunctionName": "bridge"},
        )


def standing(state: str = "Enabled", batch_size: int = 10, **more: Any) -> dict[str, Any]:
    """A mapping as Lambda lists it."""
    return {"UUID": ONE, "State": state, "BatchSize": batch_size, **more}


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    script = Scripted()
    yield script
    script.stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("states", "switched"), [({ONE: "Enabled", TWO: "Enabling"}, []), ({ONE: "Disabled", TWO: "Disabling"}, [ONE, TWO])]
)
def test_what_peers_send_is_read_from_then_on(scripted: Scripted, states: dict[str, str], switched: list[str]) -> None:
    for mapping, state in states.items():
        found = {"EventSourceMappings": [{"UUID": mapping, "State": state}]}
        scripted.stub.add_response("list_event_source_mappings", found, {"EventSourceArn": PREFIX + mapping})
        if mapping in switched:
            asked = {"UUID": mapping, "Enabled": True}
            scripted.stub.add_response("update_event_source_mapping", {"UUID": mapping}, asked)
    enable_peer_mappings(scripted.client, [PREFIX + mapping for mapping in states])


def test_one_that_changes_just_now_is_switched_on_another_time(scripted: Scripted) -> None:
    found = {"EventSourceMappings": [{"UUID": ONE, "State": "Disabled"}]}
    for code in ("ResourceInUseException", "TooManyRequestsException"):
        scripted.stub.add_response("list_event_source_mappings", found, {"EventSourceArn": PREFIX + "q"})
        scripted.stub.add_client_error("update_event_source_mapping", code)
    enable_peer_mappings(scripted.client, [PREFIX + "q"])
    with pytest.raises(CallFailed, match="TooManyRequestsException"):
        enable_peer_mappings(scripted.client, [PREFIX + "q"])


TEN = MappingScaling(batch_size=10)
PACED = {"BatchSize": 10, "ScalingConfig": {}, "MaximumBatchingWindowInSeconds": 0}
CREATED = {
    "EventSourceArn": PREFIX + "q",
    "FunctionName": "bridge",
    "FunctionResponseTypes": ["ReportBatchItemFailures"],
}


@pytest.mark.parametrize(
    ("batch_size", "max_concurrency", "more"),
    [
        (10, None, {}),
        (1, 2, {"ScalingConfig": {"MaximumConcurrency": 2}}),
        (MAX_UNWINDOWED_BATCH + 1, None, {"MaximumBatchingWindowInSeconds": WINDOW_S}),
    ],
)
def test_a_mapping_is_made_as_asked(
    scripted: Scripted, batch_size: int, max_concurrency: int | None, more: dict[str, Any]
) -> None:
    expected = CREATED | {"BatchSize": batch_size, "Enabled": False} | more
    scripted.listed()
    scripted.stub.add_response("create_event_source_mapping", {"UUID": ONE}, expected)
    scaling = MappingScaling(batch_size=batch_size, max_concurrency=max_concurrency)
    assert scripted.mappings.reconcile("q", scaling, on=False) == ONE


def test_one_that_is_missing_is_only_made_where_asked(scripted: Scripted) -> None:
    scripted.listed()
    assert scripted.mappings.reconcile("q", TEN, on=True, creates=False) == ""
    assert FakeMappings().reconcile("q", TEN, on=True, creates=False) == ""


@pytest.mark.parametrize("state", ["Enabled", "Enabling", "Creating", "Updating"])
def test_one_that_reads_as_asked_is_left_alone(scripted: Scripted, state: str) -> None:
    scripted.listed(standing(state))
    assert scripted.mappings.reconcile("q", TEN, on=True) == ONE


@pytest.mark.parametrize("state", ["Disabled", "Disabling"])
def test_one_that_is_off_is_left_alone_or_switched_on(scripted: Scripted, state: str) -> None:
    scripted.listed(standing(state))
    assert scripted.mappings.reconcile("q", TEN, on=False) == ONE
    scripted.listed(standing(state))
    scripted.stub.add_response("update_event_source_mapping", {}, PACED | {"UUID": ONE, "Enabled": True})
    assert scripted.mappings.reconcile("q", TEN, on=True) == ONE


@pytest.mark.parametrize(
    ("queue", "pace", "asked"),
    [
        ("q", TEN, PACED),
        ("q.fifo", TEN, {"BatchSize": 10, "ScalingConfig": {}}),
        (
            "q",
            MappingScaling(batch_size=MAX_UNWINDOWED_BATCH + 1, max_concurrency=2),
            {
                "BatchSize": MAX_UNWINDOWED_BATCH + 1,
                "MaximumBatchingWindowInSeconds": WINDOW_S,
                "ScalingConfig": {"MaximumConcurrency": 2},
            },
        ),
    ],
)
def test_one_that_reads_at_another_pace_is_changed_where_it_stands(
    scripted: Scripted, queue: str, pace: MappingScaling, asked: dict[str, Any]
) -> None:
    scripted.listed(standing(ScalingConfig={"MaximumConcurrency": 5}))
    scripted.stub.add_response("update_event_source_mapping", {}, asked | {"UUID": ONE, "Enabled": True})
    scripted.mappings.reconcile(queue, pace, on=True)


@pytest.mark.parametrize("listed", [[], [standing("Deleting")]])
def test_one_that_is_there_and_not_listed_is_waited_for(scripted: Scripted, listed: list[dict[str, Any]]) -> None:
    """It is being deleted, or was made a moment ago."""
    scripted.listed(*listed)
    scripted.stub.add_client_error("create_event_source_mapping", "ResourceConflictException", http_status_code=409)
    with pytest.raises(CallFailed, match="ResourceConflictException") as caught:
        scripted.mappings.reconcile("q", TEN, on=True)
    assert caught.value.is_transient


def test_one_that_is_changing_is_waited_for(scripted: Scripted) -> None:
    scripted.listed(standing("Disabling"))
    scripted.stub.add_client_error("update_event_source_mapping", "ResourceInUseException")
    with pytest.raises(CallFailed, match="ResourceInUseException") as caught:
        scripted.mappings.reconcile("q", TEN, on=True)
    assert caught.value.is_transient


def test_what_cannot_be_made_says_why(scripted: Scripted) -> None:
    scripted.listed()
    scripted.stub.add_client_error("create_event_source_mapping", "InvalidParameterValueException", "no queue")
    with pytest.raises(CallFailed, match="InvalidParameterValueException: no queue"):
        scripted.mappings.reconcile("q", TEN, on=True)


def test_all_of_a_queues_mappings_are_deleted_and_one_that_is_gone_is_no_error(scripted: Scripted) -> None:
    scripted.listed(standing(), {"UUID": TWO})
    scripted.stub.add_response("delete_event_source_mapping", {}, {"UUID": ONE})
    scripted.stub.add_client_error("delete_event_source_mapping", "ResourceNotFoundException")
    scripted.mappings.delete("q")
    scripted.listed()
    scripted.mappings.delete("q")
    scripted.listed(standing())
    scripted.stub.add_client_error("delete_event_source_mapping", "TooManyRequestsException")
    with pytest.raises(CallFailed, match="TooManyRequestsException"):
        scripted.mappings.delete("q")


def test_the_fake_takes_one_that_is_there() -> None:
    fake = FakeMappings()
    made = fake.reconcile("q", TEN, on=False)
    assert fake.reconcile("q", TEN, on=True) == made
    assert fake.made[made].on
    fake.delete("q")
    fake.delete("q")
    assert fake.made == {}
