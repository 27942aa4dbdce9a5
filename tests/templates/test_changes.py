"""What becomes of a deployed site when its parameters change: nothing is lost, or another's, that nobody named."""

from collections.abc import Callable

import pytest

from tests.templates.changed_sets import (
    ADOPTED,
    FIFO_FIRST,
    LANDED,
    OF_ANOTHER_KIND,
    OTHER_PEERS,
    RENAMED,
    SITE,
    SWAPPED,
    SWITCHED_OFF,
    WITHOUT_FIRST,
    WITHOUT_LAST,
)
from tests.templates.changes import LEFT, LOST, NEW, Change
from tests.templates.conftest import Assemblies
from tests.templates.parameter_sets import ParameterSet

Changes = Callable[[ParameterSet, ParameterSet], Change]

FIRST = {
    "source of orders": LOST,
    "main of orders": LOST,
    "queue of invoices": LOST,
    "ingress of amq.topic": LOST,
}
LAST = {
    "source of ledger": LOST,
    "main of ledger": LOST,
    "dead letters of ledger": LOST,
    "queue of audit": LOST,
    "FIFO ingress of amq.fanout": LOST,
}
MADE_BY_ADOPTION = {
    "OffersQueue": NEW,
    "source of orders": NEW,
    "main of orders": NEW,
    "queue of invoices": NEW,
}
SWITCHABLE = {
    "Alarms": LOST,
    "CountersQueue": LOST,
    "PipelineBucket": LEFT,
    "PipelineTable": LEFT,
    "landed main of pipeline": "main of pipeline",
}


@pytest.fixture(scope="session")
def changes(assemblies: Assemblies) -> Changes:
    """From one set of parameters to another."""
    return lambda before, after: Change(assemblies(before), assemblies(after))


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="reordering two queues in cdk.json swaps their contents")
def test_two_queues_in_another_order_keep_their_contents(changes: Changes) -> None:
    assert changes(SITE, SWAPPED).contents == {}


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="reordering a FIFO queue and another in cdk.json deletes their contents"
)
def test_a_fifo_queue_and_another_in_another_order_keep_their_contents(changes: Changes) -> None:
    assert changes(SITE, FIFO_FIRST).contents == {}


def test_a_queue_after_the_others_is_made_and_nothing_else(changes: Changes) -> None:
    assert changes(WITHOUT_LAST, SITE).contents == dict.fromkeys(LAST, NEW)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a queue that is put before others in cdk.json gets the contents of the next one, as does each after it",
)
def test_a_queue_before_the_others_is_made_and_nothing_else(changes: Changes) -> None:
    assert changes(WITHOUT_FIRST, SITE).contents == dict.fromkeys(FIRST, NEW)


def test_a_queue_after_the_others_goes_and_nothing_else(changes: Changes) -> None:
    assert changes(SITE, WITHOUT_LAST).contents == LAST


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a queue that is taken from before others in cdk.json leaves its contents to the next, and the last's go",
)
def test_a_queue_before_the_others_goes_and_nothing_else(changes: Changes) -> None:
    assert changes(SITE, WITHOUT_FIRST).contents == FIRST


def test_a_queue_of_another_name_has_the_contents_that_it_had(changes: Changes) -> None:
    assert changes(SITE, RENAMED).contents == {
        "source of orders": "source of parcels",
        "main of orders": "main of parcels",
        "queue of invoices": "queue of bills",
        "ingress of amq.topic": "ingress of amq.match",
    }


def test_where_a_queue_is_adopted_the_one_that_was_made_goes_and_nothing_else(changes: Changes) -> None:
    assert changes(SITE, ADOPTED).contents == dict.fromkeys(MADE_BY_ADOPTION, LOST)


def test_where_a_queue_is_adopted_no_longer_one_is_made_and_nothing_else(changes: Changes) -> None:
    assert changes(ADOPTED, SITE).contents == MADE_BY_ADOPTION


def test_a_queue_of_another_kind_or_name_is_another_and_the_rest_stay(changes: Changes) -> None:
    assert changes(SITE, OF_ANOTHER_KIND).contents == {
        "OffersQueue": LOST,
        "source of orders": LOST,
        "main of orders": LOST,
        "dead letters of orders": NEW,
        "queue of invoices": LOST,
    }


def test_what_is_switched_off_goes_and_what_the_pipeline_has_landed_stays(changes: Changes) -> None:
    assert changes(SITE, SWITCHED_OFF).contents == SWITCHABLE


def test_what_is_switched_on_is_made_and_nothing_else(changes: Changes) -> None:
    assert changes(SWITCHED_OFF, SITE).contents == {
        "Alarms": NEW,
        "CountersQueue": NEW,
        "PipelineBucket": NEW,
        "PipelineTable": NEW,
        "main of pipeline": "landed main of pipeline",
    }


def test_where_another_queue_is_landed_all_keep_their_contents(changes: Changes) -> None:
    assert changes(SITE, LANDED).contents == {
        "landed main of pipeline": "main of pipeline",
        "main of orders": "landed main of orders",
    }


@pytest.mark.parametrize(("before", "after"), [(SITE, OTHER_PEERS), (OTHER_PEERS, SITE)], ids=["come", "go"])
def test_peers_roles_and_exchanges_come_and_go_without_a_queue(
    changes: Changes, before: ParameterSet, after: ParameterSet
) -> None:
    change = changes(before, after)
    assert (change.contents, change.refusals) == ({}, {})


@pytest.mark.parametrize(
    ("before", "after"),
    [(WITHOUT_LAST, SITE), (ADOPTED, SITE), (SITE, SITE)],
    ids=["added", "made where one was adopted", "deployed again"],
)
def test_aws_takes_that_queues_come(changes: Changes, before: ParameterSet, after: ParameterSet) -> None:
    assert changes(before, after).refusals == {}


@pytest.mark.parametrize(
    ("after", "name"),
    [
        pytest.param(
            after,
            name,
            marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"{reason}, as others import it"),
            id=f"{after.name}: {name}",
        )
        for after, names, reason in [
            (WITHOUT_LAST, LAST, "a queue that is taken out of cdk.json can't go"),
            (ADOPTED, MADE_BY_ADOPTION, "a queue that is adopted can't take the place of the one that was made"),
            (OF_ANOTHER_KIND, ["OffersQueue", "source of orders"], "a queue can't become one of another kind or name"),
            (SWITCHED_OFF, SWITCHABLE, "what an optional part has in the stack of state can't go"),
            (LANDED, ["landed main of pipeline"], "the pipeline can't be given another queue"),
        ]
        for name in names
    ],
)
def test_aws_takes_that_something_goes(changes: Changes, after: ParameterSet, name: str) -> None:
    assert changes(SITE, after).refusals.get(name, []) == []


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="to adopt an offers queue the guide has SluiceRendezvous destroyed, but SluiceOperations imports it too",
)
def test_an_offers_queue_can_be_adopted_where_the_stack_is_destroyed_that_the_guide_names(changes: Changes) -> None:
    assert changes(SITE, ADOPTED).refusals["OffersQueue"] == ["SluiceRendezvous"]
