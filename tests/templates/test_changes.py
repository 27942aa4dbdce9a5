"""What becomes of a deployed site when its parameters change: nothing is lost, or another's, that nobody named."""

import json
from collections.abc import Callable

import pytest

from sluice.parameters.values import unique_construct_id
from tests.templates.changed_sets import (
    ADOPTED,
    CHANGED,
    FIFO_FIRST,
    LANDED,
    OF_ANOTHER_KIND,
    OTHER_PEERS,
    OTHER_ZONES,
    OWN_SUBNETS,
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

OFFERS = unique_construct_id("OffersQueue", "snowflake-broker")
FIRST = ("source of orders", "main of orders", "queue of invoices", "ingress of amq.topic")
LAST = (
    "source of ledger",
    "main of ledger",
    "dead letters of ledger",
    "queue of audit",
    "FIFO ingress of amq.fanout",
)
MADE_BY_ADOPTION = {
    OFFERS: NEW,
    "source of orders": NEW,
    "main of orders": NEW,
    "queue of invoices": NEW,
}
SWITCHABLE = {
    "Alarms": LOST,
    "PipelineBucket": LEFT,
    "PipelineTable": LEFT,
    "landed main of pipeline": "main of pipeline",
}


@pytest.fixture(scope="session")
def changes(assemblies: Assemblies) -> Changes:
    """From one set of parameters to another."""
    return lambda before, after: Change(assemblies(before), assemblies(after))


def test_two_queues_in_another_order_keep_their_contents(changes: Changes) -> None:
    assert changes(SITE, SWAPPED).contents == {}


def test_a_fifo_queue_and_another_in_another_order_keep_their_contents(changes: Changes) -> None:
    assert changes(SITE, FIFO_FIRST).contents == {}


def test_a_queue_after_the_others_is_made_and_nothing_else(changes: Changes) -> None:
    assert changes(WITHOUT_LAST, SITE).contents == dict.fromkeys(LAST, NEW)


def test_a_queue_before_the_others_is_made_and_nothing_else(changes: Changes) -> None:
    assert changes(WITHOUT_FIRST, SITE).contents == dict.fromkeys(FIRST, NEW)


def test_a_queue_after_the_others_is_left_and_nothing_else(changes: Changes) -> None:
    assert changes(SITE, WITHOUT_LAST).contents == dict.fromkeys(LAST, LEFT)


def test_a_queue_before_the_others_is_left_and_nothing_else(changes: Changes) -> None:
    assert changes(SITE, WITHOUT_FIRST).contents == dict.fromkeys(FIRST, LEFT)


def test_a_queue_of_another_name_is_another_and_the_one_that_was_is_left(changes: Changes) -> None:
    renamed = ("source of parcels", "main of parcels", "queue of bills", "ingress of amq.match")
    assert changes(SITE, RENAMED).contents == dict.fromkeys(FIRST, LEFT) | dict.fromkeys(renamed, NEW)


def test_where_a_queue_is_adopted_the_one_that_was_made_is_left_and_nothing_else(changes: Changes) -> None:
    assert changes(SITE, ADOPTED).contents == dict.fromkeys(MADE_BY_ADOPTION, LEFT) | {OFFERS: LOST}


def test_where_a_queue_is_adopted_no_longer_one_is_made_and_nothing_else(changes: Changes) -> None:
    assert changes(ADOPTED, SITE).contents == MADE_BY_ADOPTION


def test_a_queue_of_another_kind_or_name_is_another_and_the_rest_stay(changes: Changes) -> None:
    assert changes(SITE, OF_ANOTHER_KIND).contents == {
        OFFERS: LOST,
        unique_construct_id("OffersQueue", "another"): NEW,
        "source of orders": LEFT,
        "main of orders": LEFT,
        "dead letters of orders": NEW,
        "queue of invoices": LEFT,
    }


def test_what_is_switched_off_goes_and_what_the_pipeline_has_landed_stays(changes: Changes) -> None:
    assert changes(SITE, SWITCHED_OFF).contents == SWITCHABLE


def test_what_is_switched_on_is_made_and_nothing_else(changes: Changes) -> None:
    assert changes(SWITCHED_OFF, SITE).contents == {
        "Alarms": NEW,
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
    assert changes(before, after).contents == {}


NETWORKS = [(SITE, OWN_SUBNETS), (OWN_SUBNETS, SITE), (SITE, OTHER_ZONES), (OTHER_ZONES, OWN_SUBNETS)]


@pytest.mark.parametrize(("before", "after"), NETWORKS, ids=lambda each: each.name)
def test_jobs_move_to_another_network_and_stay_what_they_are(
    changes: Changes, assemblies: Assemblies, before: ParameterSet, after: ParameterSet
) -> None:
    """The application with its runs is changed where it stands; its role and log are what they were.

    The function that makes its endpoints is told of the network, and may make them there alone.
    """
    assert changes(before, after).contents == {}
    was, now = (
        {resource.id: (resource.type, resource.properties) for resource in assemblies(each).resources()}
        for each in (before, after)
    )
    changed = {id_: (was.get(id_) or now[id_])[0] for id_ in {*was, *now} if was.get(id_) != now.get(id_)}
    assert changed["Application"] == "AWS::EMRServerless::Application"
    function = {id_ for id_, type_ in changed.items() if id_.startswith("Jobs") or type_ == "AWS::SSM::Parameter"}
    assert {changed[id_].split("::")[1] for id_ in changed.keys() - function} == {"EC2", "EMRServerless"}
    assert not any(id_.startswith("JobRole") for id_ in changed)
    assert was["Application"][1].keys() == now["Application"][1].keys()


@pytest.mark.parametrize("after", CHANGED, ids=lambda each: each.name)
def test_who_reads_what_is_replaced_hears_of_it(changes: Changes, after: ParameterSet) -> None:
    """A stack that isn't deployed again goes on with what was."""
    assert changes(SITE, after).unheard_of == changes(after, SITE).unheard_of == {}


@pytest.mark.parametrize("each", [SITE, *CHANGED], ids=lambda each: each.name)
def test_whatever_a_stack_has_may_go(assemblies: Assemblies, each: ParameterSet) -> None:
    """CloudFormation lets no export go that another stack imports; a name in a document may go, whoever reads it."""
    templates = json.dumps(assemblies(each).stacks)
    assert '"Export"' not in templates
    assert '"Fn::ImportValue"' not in templates
