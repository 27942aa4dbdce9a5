"""A rate that a function of the user's says."""

import pytest
from sluice_spark.errors import InvalidOption
from sluice_spark.options import parse_options
from sluice_spark.source.rate import RateLimitFunction, TokenBucket, build_rate_limit

MINIMUM = {"queueUrl": "https://sqs.eu-west-1.amazonaws.com/1/q", "stagingLocation": "/tmp/log"}
SAYS: list[object] = []


def says() -> object:
    """What the test has last put into SAYS, raised if it is an error."""
    if isinstance(SAYS[-1], Exception):
        raise SAYS[-1]
    return SAYS[-1]


def test_the_option_is_a_number_or_a_function() -> None:
    assert parse_options({**MINIMUM, "rateLimit": "200"}).rate_limit == 200
    given = parse_options({**MINIMUM, "rateLimit": f"{__name__}:says"}).rate_limit
    SAYS[:] = [7]
    limit = build_rate_limit(given)
    assert limit is not None
    assert limit() == 7.0


@pytest.mark.parametrize("given", ["no.such.module:name", f"{__name__}:nothing"])
def test_a_function_that_is_not_there_is_said_at_the_start(given: str) -> None:
    with pytest.raises(InvalidOption, match="rateLimit"):
        build_rate_limit(given)


@pytest.mark.parametrize("said", [-1, float("nan"), float("inf"), "7", True, RuntimeError("no")])
def test_so_is_one_that_says_no_rate(said: object) -> None:
    SAYS[:] = [said]
    with pytest.raises(InvalidOption, match="rateLimit"):
        build_rate_limit(f"{__name__}:says")


def test_what_it_said_last_holds_while_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    limit = RateLimitFunction(says, clock=lambda: now[0])
    SAYS[:] = [7]
    limit.check()
    SAYS[:] = [RuntimeError("no")]
    assert [limit(), limit()] == [7.0, 7.0]
    now[0] = 61.0
    assert limit() == 7.0
    assert len(caplog.records) == 2
    SAYS[:] = [8]
    assert limit() == 8.0


def test_it_is_asked_once_a_second_and_may_stop_everything_and_let_go() -> None:
    asked: list[float] = []
    now, says_now = 0.0, [None, 0, 10, None]

    def limit() -> float | None:
        asked.append(now)
        return says_now[min(int(now), 3)]

    rate, allowed = TokenBucket(limit=limit), []
    while now < 4:
        allowed.append(rate.can_receive(now))
        rate.take(10 if allowed[-1] else 0)
        now += 0.25
    assert asked == [0.0, 1.0, 2.0, 3.0]
    assert allowed[:4] == allowed[12:] == [True] * 4
    assert allowed[4:8] == [False] * 4
    assert 0 < sum(allowed[8:12]) < 4
