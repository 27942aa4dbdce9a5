"""Parameters of Systems Manager name another queue, and then the first again: on moto."""

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from moto import mock_aws

from sluice.aws.splitting.consumers.targets import AwsConsumers
from sluice.errors import BadConsumer, CallFailed
from sluice.splitting.consumers.targets import Place, SystemsManagerParameter
from tests.interruptions import Interruptions, each_interruption, until_true
from tests.many_cases import one_of

REGION = "eu-central-1"
PREFIX = f"arn:aws:sqs:{REGION}:123456789012:"
SOURCE, MAIN = "orders", "sluice-tmp-abcdef0123456789ab-main-orders"
LATER_MS = 10**14  # than anything was written
TARGET = SystemsManagerParameter(name="/orders/queues", place=Place(pattern="[^,]+"))
VALUE = f"other,{PREFIX}{SOURCE}"
POINTED = f"other,{PREFIX}{MAIN}"
KEPT = {"Type": "StringList", "Tier": "Advanced", "Description": "ours", "AllowedPattern": ".*orders.*"}


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


def client() -> Any:
    return boto3.client("ssm", region_name=REGION)  # its stubs aren't installed


def consumers(client: Any, *, now_ms: int = LATER_MS) -> AwsConsumers:
    return AwsConsumers(client=lambda _: client, arn_prefix=PREFIX, now_ms=lambda: now_ms)


def put(value: str, **more: Any) -> None:
    client().put_parameter(Name=TARGET.name, Value=value, Overwrite=True, **more)


def parameter() -> tuple[str, dict[str, Any]]:
    """Read the value, and what else there is of it that others set."""
    [found] = client().describe_parameters()["Parameters"]
    return client().get_parameter(Name=TARGET.name)["Parameter"]["Value"], {key: found.get(key) for key in KEPT}


@mock_aws
def test_a_parameter_names_another_queue_and_then_the_first_and_keeps_its_type_and_tier() -> None:
    put(VALUE, **KEPT)
    ours = consumers(client())
    original = ours.read_original(TARGET, queue=SOURCE)
    assert original == VALUE
    until_true(lambda: ours.point(TARGET, original, queue=MAIN, instead_of=(SOURCE,)))
    assert parameter() == (POINTED, KEPT)
    until_true(lambda: ours.point(TARGET, original, queue=SOURCE, instead_of=(MAIN,)))
    assert parameter() == (VALUE, KEPT)


@mock_aws
def test_what_is_there_already_is_not_written_again() -> None:
    put(POINTED, Type="StringList")
    assert consumers(client()).point(TARGET, VALUE, queue=MAIN, instead_of=(SOURCE,))
    assert client().get_parameter(Name=TARGET.name)["Parameter"]["Version"] == 1


@mock_aws
def test_what_is_kept_may_come_after_an_empty_page_and_the_parameter_be_named_by_its_arn() -> None:
    put(VALUE, **KEPT)
    pages, made = iter([{"Parameters": [], "NextToken": "0"}]), client()
    made.meta.events.register("after-call.ssm.DescribeParameters", lambda parsed, **_: parsed.update(next(pages, {})))
    arn = made.get_parameter(Name=TARGET.name)["Parameter"]["ARN"]
    target = SystemsManagerParameter(name=arn, place=TARGET.place)
    until_true(lambda: consumers(made).point(target, VALUE, queue=MAIN, instead_of=(SOURCE,)))
    assert parameter() == (POINTED, KEPT)
    assert next(pages, None) is None


@mock_aws
def test_readers_have_their_time_to_see_it() -> None:
    put(POINTED, Type="StringList")
    target = SystemsManagerParameter(name=TARGET.name, place=TARGET.place, refresh_s=60)
    written_ms = round(client().get_parameter(Name=TARGET.name)["Parameter"]["LastModifiedDate"].timestamp() * 1_000)
    for waited_ms, there in ((0, False), (59_000, False), (61_000, True)):
        ours = consumers(client(), now_ms=written_ms + waited_ms)
        assert ours.point(target, VALUE, queue=MAIN, instead_of=(SOURCE,)) is there


@one_of(4)
def test_whatever_call_fails_it_gets_there_and_back(every: int) -> None:
    @mock_aws
    def scenario(interruptions: Interruptions) -> None:
        put(VALUE, **KEPT)
        ours = consumers(interruptions.watch(client()))
        until_true(lambda: ours.point(TARGET, VALUE, queue=MAIN, instead_of=(SOURCE,)))
        assert parameter() == (POINTED, KEPT)
        until_true(lambda: ours.point(TARGET, VALUE, queue=SOURCE, instead_of=(MAIN,)))
        assert parameter() == (VALUE, KEPT)

    each_interruption(scenario, every=every)


def writing_before_us(write: Callable[[int], None]) -> Any:
    """Make a client before whose writes somebody else's come; `write` gets how many there were."""
    made, writes = client(), iter(range(100))
    made.meta.events.register("before-call.ssm.PutParameter", lambda **_: write(next(writes)))
    return made


@mock_aws
@pytest.mark.parametrize(
    ("theirs", "then"),
    [
        (f"third,{PREFIX}{SOURCE}", f"third,{PREFIX}{MAIN}"),
        (f"third,{PREFIX}{MAIN}", f"third,{PREFIX}{MAIN}"),
        ("none", "none"),
    ],
)
def test_what_somebody_writes_between_read_and_write_is_not_lost(theirs: str, then: str) -> None:
    put(VALUE, Type="StringList")
    ours = consumers(writing_before_us(lambda number: put(theirs) if number == 0 else None))
    assert not ours.point(TARGET, VALUE, queue=MAIN, instead_of=(SOURCE,))
    assert parameter()[0] == then


@mock_aws
def test_one_that_somebody_writes_all_the_time_is_given_up() -> None:
    put(VALUE, Type="StringList")
    ours = consumers(writing_before_us(lambda number: put(f"{number},{SOURCE}")))
    with pytest.raises(CallFailed, match="PutParameter: Changing"):
        ours.point(TARGET, VALUE, queue=MAIN, instead_of=(SOURCE,))


@mock_aws
def test_a_secret_is_refused() -> None:
    put(VALUE, Type="SecureString")
    with pytest.raises(BadConsumer, match=r"^parameter /orders/queues: is a SecureString: a queue's name is no secret"):
        consumers(client()).read_original(TARGET, queue=SOURCE)


@mock_aws
def test_what_does_not_name_the_queue_is_refused_and_what_is_gone_fails() -> None:
    with pytest.raises(CallFailed, match="GetParameter: ParameterNotFound"):
        consumers(client()).read_original(TARGET, queue=SOURCE)
    put("other", Type="String")
    with pytest.raises(BadConsumer, match=r"^parameter /orders/queues \[\^,\]\+: doesn't name orders$"):
        consumers(client()).read_original(TARGET, queue=SOURCE)
