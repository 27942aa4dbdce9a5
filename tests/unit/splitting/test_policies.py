"""Policies: which sessions an administrator's rules let begin, and what the others are told."""

import pytest
from msgspec import UNSET

from sluice.codec import encode
from sluice.splitting.filters.values import Filter, Mode, QueueFilter
from sluice.splitting.policies import Policy, find_named_attributes, list_refusals


def refused(policy: Policy, asked: Filter, *, mode: Mode = Mode.STEAL, limit_s: int | None = None) -> list[str]:
    """Of a queue with one live session."""
    filter_ = QueueFilter(filter=asked, mode=mode)
    return list(list_refusals([policy], "orders", filter_, time_limit_s=limit_s, sessions=1))


ANY = Filter(attributes=(("user", "."),))


@pytest.mark.parametrize(
    ("patterns", "holds"),
    [
        (("*",), True),
        (("orders",), True),
        (("ord*",), True),
        (("billing", "*s"), True),
        (("Orders",), False),
        (("order",), False),
        ((), False),
    ],
)
def test_a_policy_holds_for_the_queues_that_a_pattern_fits(patterns: tuple[str, ...], holds: bool) -> None:
    assert bool(refused(Policy(queues=patterns, max_sessions=0), ANY)) is holds


def test_an_id_with_brackets_fits_itself() -> None:
    assert Policy(queues=("a[1]",)).applies_to("a[1]")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy(required_attributes=("tenant", "USER")), "required_attributes: its filter must name tenant"),
        (Policy(modes=(Mode.MIRROR,)), "modes: it may mirror, not steal"),
        (Policy(max_sessions=1), "max_sessions: there are 1 sessions of 1 already"),
        (Policy(max_time_limit_s=60), "max_time_limit_s: it must have a time limit, of at most 60 s"),
    ],
)
def test_a_refusal_names_the_rule_and_the_queue(policy: Policy, words: str) -> None:
    assert refused(policy, ANY) == [f"queue orders: splitting.policies[0].{words}"]


def test_all_policies_that_hold_count_and_all_that_is_broken_is_said() -> None:
    policies = [Policy(queues=("other",), allow_jq=False), Policy(allow_jq=False), Policy(max_time_limit_s=60)]
    asked = QueueFilter(filter=Filter(jq="true"))
    found = list(list_refusals(policies, "orders", asked, time_limit_s=61, sessions=0))
    assert [each.split(":")[1] for each in found] == [
        " splitting.policies[1].allow_jq",
        " splitting.policies[2].max_time_limit_s",
    ]


def test_who_keeps_the_rules_may_begin() -> None:
    policy = Policy(
        required_attributes=("tenant",), allow_jq=False, modes=(Mode.MIRROR,), max_sessions=2, max_time_limit_s=60
    )
    assert refused(policy, Filter(attributes=(("Tenant", "^a$"),)), mode=Mode.MIRROR, limit_s=60) == []
    assert refused(Policy(), Filter(jq="true")) == []


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("^tenant: blue$", {"tenant"}),
        ("^Tenant:", {"tenant"}),
        ("(?i)^tenant: blue", {"tenant"}),
        (r"^my\.tenant\-id: (?:a|b)$", {"my.tenant-id"}),
        ("^tenant: [|]", {"tenant"}),
        ("tenant: blue", set()),
        ("^tenant: blue|x", set()),
        ("^tenant:? blue", set()),
        ("^tenan[t]: blue", set()),
        ("^(tenant): blue", set()),
        ("^my.tenant: blue", set()),
        (r"^tenant\s: blue", set()),
        ("(?m)^tenant: blue", set()),
        ("^tenant", set()),
        ("^: blue", set()),
        ("", set()),
    ],
)
def test_a_line_pattern_names_the_attribute_that_it_begins_with(pattern: str, named: set[str]) -> None:
    assert find_named_attributes(Filter(all_of=(pattern,))) == named
    assert find_named_attributes(Filter(any_of=(pattern, pattern))) == named


def test_of_patterns_that_are_each_enough_all_name_the_same() -> None:
    assert find_named_attributes(Filter(any_of=("^a: 1", "^A: 2"))) == {"a"}
    assert find_named_attributes(Filter(any_of=("^a: 1", "^b: 2"))) == set()
    assert find_named_attributes(Filter(all_of=("^a: 1", "^b: 2"), any_of=UNSET)) == {"a", "b"}
    assert find_named_attributes(Filter(attributes=(("C", "."),), jq=".MessageAttributes.d")) == {"c"}


def test_the_rules_are_said_in_words_and_written_only_where_they_are_given() -> None:
    policy = Policy(required_attributes=("tenant",), allow_jq=False, modes=(Mode.MIRROR,), max_sessions=3)
    assert list(policy.rules()) == ["names tenant", "no jq", "mirror only", "at most 3 sessions"]
    assert list(Policy(max_time_limit_s=60).rules()) == ["a time limit of at most 60 s"]
    assert list(Policy().rules()) == []
    assert encode(Policy()) == b"{}"
    assert encode(Policy(allow_jq=False)) == b'{"allow_jq":false}'
