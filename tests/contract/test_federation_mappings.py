"""Event source mappings keep their port's promises: through a stubbed Lambda client, and the fake beside it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from sluice.aws.federation.mappings import WINDOW_S, BridgeMappings, switch_on_peer_mappings
from sluice.aws_rules import MAX_UNWINDOWED_BATCH
from sluice.errors import CallFailed, MappingGone
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
        return BridgeMappings(client=self.client, function="bridge", arn_prefix=PREFIX)

    def listed(self, *ids: str) -> None:
        self.stub.add_response(
            "list_event_source_mappings",
            {"EventSourceMappings": [{"UUID": id_} for id_ in ids]},
            {"EventSourceArn": PREFIX + "q", "FunctionName": "bridge"},
        )


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
    switch_on_peer_mappings(scripted.client, [PREFIX + mapping for mapping in states])


def test_one_that_changes_just_now_is_switched_on_another_time(scripted: Scripted) -> None:
    found = {"EventSourceMappings": [{"UUID": ONE, "State": "Disabled"}]}
    for code in ("ResourceInUseException", "TooManyRequestsException"):
        scripted.stub.add_response("list_event_source_mappings", found, {"EventSourceArn": PREFIX + "q"})
        scripted.stub.add_client_error("update_event_source_mapping", code)
    switch_on_peer_mappings(scripted.client, [PREFIX + "q"])
    with pytest.raises(CallFailed, match="TooManyRequestsException"):
        switch_on_peer_mappings(scripted.client, [PREFIX + "q"])


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
    scripted.stub.add_response("create_event_source_mapping", {"UUID": ONE}, expected)
    made = scripted.mappings.create(
        "q", MappingScaling(batch_size=batch_size, max_concurrency=max_concurrency), on=False
    )
    assert made == ONE


def test_one_that_is_there_already_is_taken_and_switched(scripted: Scripted) -> None:
    scripted.stub.add_client_error("create_event_source_mapping", "ResourceConflictException", http_status_code=409)
    scripted.listed(ONE)
    scripted.stub.add_response("update_event_source_mapping", {}, PACED | {"UUID": ONE, "Enabled": True})
    assert scripted.mappings.create("q", TEN, on=True) == ONE


def test_one_that_is_there_and_not_listed_is_waited_for(scripted: Scripted) -> None:
    """It is being deleted, or was made a moment ago."""
    scripted.stub.add_client_error("create_event_source_mapping", "ResourceConflictException", http_status_code=409)
    scripted.listed()
    with pytest.raises(CallFailed, match="ResourceConflictException") as caught:
        scripted.mappings.create("q", TEN, on=True)
    assert caught.value.is_transient


def test_one_that_is_changing_is_waited_for(scripted: Scripted) -> None:
    scripted.stub.add_client_error("create_event_source_mapping", "ResourceConflictException", http_status_code=409)
    scripted.listed(ONE)
    scripted.stub.add_client_error("update_event_source_mapping", "ResourceInUseException")
    with pytest.raises(CallFailed, match="ResourceInUseException") as caught:
        scripted.mappings.create("q", TEN, on=True)
    assert caught.value.is_transient


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
    scripted.stub.add_response(
        "get_event_source_mapping", {"BatchSize": 1, "ScalingConfig": {"MaximumConcurrency": 5}}, {"UUID": ONE}
    )
    scripted.stub.add_response("update_event_source_mapping", {}, asked | {"UUID": ONE})
    scripted.mappings.rescale(ONE, queue, pace)


def test_one_that_reads_so_already_is_left_alone(scripted: Scripted) -> None:
    scripted.stub.add_response("get_event_source_mapping", {"BatchSize": 10}, {"UUID": ONE})
    scripted.mappings.rescale(ONE, "q", TEN)


def test_what_cannot_be_made_says_why(scripted: Scripted) -> None:
    scripted.stub.add_client_error("create_event_source_mapping", "InvalidParameterValueException", "no queue")
    with pytest.raises(CallFailed, match="InvalidParameterValueException: no queue"):
        scripted.mappings.create("q", TEN, on=True)


@pytest.mark.parametrize(
    ("state", "on"),
    [("Enabled", True), ("Enabling", True), ("Creating", True), ("Disabled", False), ("Disabling", False)],
)
def test_a_mappings_state_is_on_or_off(scripted: Scripted, state: str, on: bool) -> None:
    scripted.stub.add_response("get_event_source_mapping", {"State": state}, {"UUID": ONE})
    assert scripted.mappings.is_on(ONE) is on


def test_a_mapping_that_is_about_to_go_is_gone(scripted: Scripted) -> None:
    """Who took it for switched off would switch it on, and find it gone without having missed it."""
    scripted.stub.add_response("get_event_source_mapping", {"State": "Deleting"}, {"UUID": ONE})
    with pytest.raises(MappingGone):
        scripted.mappings.is_on(ONE)


def test_all_of_a_queues_mappings_are_deleted_and_one_that_is_gone_is_no_error(scripted: Scripted) -> None:
    scripted.listed(ONE, TWO)
    scripted.stub.add_response("delete_event_source_mapping", {}, {"UUID": ONE})
    scripted.stub.add_client_error("delete_event_source_mapping", "ResourceNotFoundException")
    scripted.mappings.delete("q")
    scripted.listed()
    scripted.mappings.delete("q")


@pytest.mark.parametrize("call", ["switch", "is_on"])
@pytest.mark.parametrize(
    ("code", "error"), [("ResourceNotFoundException", MappingGone), ("TooManyRequestsException", CallFailed)]
)
def test_one_that_is_gone_is_told_from_a_failure(
    scripted: Scripted, call: str, code: str, error: type[Exception]
) -> None:
    operation = {"switch": "update_event_source_mapping", "is_on": "get_event_source_mapping"}[call]
    scripted.stub.add_client_error(
        operation, code, expected_params={"UUID": ONE} | ({"Enabled": ANY} if call == "switch" else {})
    )
    with pytest.raises(error):
        ask(scripted.mappings, call)


@pytest.mark.parametrize("call", ["switch", "is_on"])
def test_the_fake_says_so_too(call: str) -> None:
    with pytest.raises(MappingGone):
        ask(FakeMappings(), call)


def ask(mappings: BridgeMappings, call: str) -> None:
    if call == "switch":
        mappings.switch(ONE, on=True)
    else:
        mappings.is_on(ONE)


def test_the_fake_takes_one_that_is_there() -> None:
    fake = FakeMappings()
    made = fake.create("q", TEN, on=False)
    assert fake.create("q", TEN, on=True) == made
    assert fake.is_on(made)
    fake.delete("q")
    fake.delete("q")
    assert fake.made == {}
