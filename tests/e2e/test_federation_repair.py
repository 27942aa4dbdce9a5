"""What somebody deletes amid traffic: it is made anew within two minutes, and only what was in it is lost."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from sluice.aws.change_logs import DynamoChangeLog
from sluice.aws.clients import new_id
from sluice.aws.documents import EXCHANGES
from sluice.federation.exchange_store import ExchangeStore, remove_binding
from sluice.federation.operations import BridgeView, ListBindings
from sluice.local.harsh.behaviours import Behaviours
from tests.conftest import HARSH_SCALE
from tests.deployed import make_queue
from tests.e2e.federated import FederatedSite

MANY, FEW = 2_000, 200
ON_ITS_WAY = 40  # messages that come into a queue between its count and its end
MENDED_WITHIN_S = 150.0  # two minutes, and what a test takes to see it
ALL_WITHIN_S = 300.0  # a policy is a minute late both ways, and links try again after two
# "Requests you send involving that queue during the 60 seconds might succeed": what is sent then is lost, by chance.
TAKEN_BY_A_DELETED_QUEUE = 2 * Behaviours().deleted_queue_takes
POLICY_ACTS_S = Behaviours().queue_policy_acts_s * float(HARSH_SCALE or 0)
KEY = "k"


class Traffic:
    """A route from `there` to `here`, and a publisher that is halfway when something is deleted."""

    def __init__(self, here: FederatedSite, there: FederatedSite, messages: int) -> None:
        self.here, self.there = here, there
        there.taken_dead_letters()  # others'
        self.queue = here.bound("amq.fanout")
        self.route = here.pull(there, "amq.direct", "amq.fanout", key=KEY)
        [self.bridge_queue] = there.bridge_queues()
        bodies = [f"m{number}" for number in range(messages)]
        self.before, self.after = bodies[: messages // 2], bodies[messages // 2 :]

    def amid(self, delete: Callable[[], object]) -> None:
        """Publish half of it, delete while more is published, and publish the rest when that has been done."""
        middle = len(self.after) // 2
        with ThreadPoolExecutor(1) as executor:
            self._published(self.before)
            done: Future[None] = executor.submit(self._published, self.after[:middle])
            delete()
            done.result()
        self._published(self.after[middle:])

    def _published(self, bodies: Sequence[str]) -> None:
        self.there.publish("amq.direct", KEY, bodies)

    def served(self) -> BridgeView:
        """The route, as its source sees it."""
        shown = self.there.ask_site().find_bridge(f"{self.route}@{self.here.tag}")
        assert shown is not None
        return shown

    def until_mended(self, what: str) -> BridgeView:
        """Until the source says that it has made the thing anew, and that the route carries again."""
        deadline = time.monotonic() + MENDED_WITHIN_S
        while (shown := self.served()).repairs.last != what or shown.state != "Operational":
            assert time.monotonic() < deadline, shown
            time.sleep(0.2)
        return shown

    def arrived(self) -> set[str]:
        """What comes, until all has come, or nothing more does and nothing is under way."""
        everything, found = {*self.before, *self.after}, set[str]()
        deadline = time.monotonic() + ALL_WITHIN_S
        while not everything <= found and time.monotonic() < deadline:
            more = set(self.here.bodies(self.queue, 1, within_s=5, quiet_s=0))
            found |= more
            if not more and not self.under_way():
                break
        return found

    def under_way(self) -> int:
        """Messages between the publisher and the queue, those that somebody holds included."""
        here, there = self.here, self.there
        ingresses = (queue_name(here.address.fifo_ingress_url), queue_name(here.outputs["FifoIngressUrl"]))
        published = (queue_name(there.outputs["FifoIngressUrl"]), self.bridge_queue)
        dead = queue_name(there.outputs["FederationDeadLettersUrl"])
        return sum(map(here.count, ingresses)) + sum(map(there.count, (*published, dead)))


def queue_name(url: str) -> str:
    return url.rsplit("/", 1)[1]


@pytest.fixture
def traffic(b0: FederatedSite, b1: FederatedSite, request: pytest.FixtureRequest) -> Traffic:
    return Traffic(b0, b1, getattr(request, "param", MANY))


@pytest.mark.slow
@pytest.mark.parametrize("traffic", [FEW, MANY], indirect=True)
def test_a_bridge_queue_that_is_deleted_is_made_anew_and_loses_what_was_in_it(traffic: Traffic) -> None:
    there = traffic.there
    held: list[int] = []

    def delete() -> None:
        held.append(there.count(traffic.bridge_queue))
        there.sqs.delete_queue(QueueUrl=there.url(traffic.bridge_queue))

    traffic.amid(delete)
    shown = traffic.until_mended("queue")
    there.publish("amq.direct", KEY, ["last"])
    traffic.after.append("last")
    everything = {*traffic.before, *traffic.after}
    lost = everything - traffic.arrived()
    assert shown.repairs.number == 1
    assert there.taken_dead_letters() == []
    assert len(lost) <= held[0] + ON_ITS_WAY + TAKEN_BY_A_DELETED_QUEUE * len(traffic.after)
    assert "last" not in lost
    assert there.mappings().count(traffic.bridge_queue) == 1


@pytest.mark.slow
def test_an_event_source_mapping_that_is_deleted_is_made_anew_and_nothing_is_lost(traffic: Traffic) -> None:
    lambda_ = traffic.there.connection.client("lambda")

    def delete() -> None:
        for each in lambda_.list_event_source_mappings()["EventSourceMappings"]:
            if each["EventSourceArn"].endswith(f":{traffic.bridge_queue}"):
                once_it_is_free(each["UUID"])

    def once_it_is_free(mapping: str) -> None:
        """One in transition can't be deleted."""
        deadline = time.monotonic() + MENDED_WITHIN_S
        while True:
            try:
                lambda_.delete_event_source_mapping(UUID=mapping)
            except lambda_.exceptions.ResourceInUseException:
                assert time.monotonic() < deadline
                time.sleep(1)
            else:
                return

    traffic.amid(delete)
    assert traffic.arrived() == {*traffic.before, *traffic.after}
    assert traffic.until_mended("event source mapping").repairs.lost_messages == 0


@pytest.mark.slow
def test_a_routes_binding_that_is_deleted_is_made_anew_and_what_matched_nothing_is_counted(traffic: Traffic) -> None:
    there = traffic.there
    log = DynamoChangeLog(
        client=there.connection.client("dynamodb"),
        table=there.outputs["FederationTableName"],
        name=EXCHANGES,
        new_token=new_id,
    )
    traffic.amid(lambda: ExchangeStore(log).change(remove_binding(("amq.direct", traffic.bridge_queue, KEY))))
    traffic.until_mended("binding")
    time.sleep(1.1)  # exchange functions look for a new version every second
    there.publish("amq.direct", KEY, ["last"])
    traffic.after.append("last")
    assert {*traffic.before[: len(traffic.before) // 2], "last"} <= traffic.arrived()
    assert there.taken_dead_letters() == []  # what no binding matches is dropped, and counted


@pytest.mark.slow
def test_a_bound_queue_that_is_deleted_takes_its_binding_with_it(traffic: Traffic) -> None:
    here = traffic.here
    other = here.bound("amq.fanout")
    deleted = traffic.queue

    def delete() -> None:
        here.sqs.delete_queue(QueueUrl=here.url(deleted))
        here.queues.remove(deleted)

    traffic.amid(delete)
    traffic.queue = other
    assert traffic.arrived() == {*traffic.before, *traffic.after}
    deadline = time.monotonic() + MENDED_WITHIN_S
    while deleted in {binding.queue for binding in here.ask(ListBindings()).bindings}:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert other in {binding.queue for binding in here.ask(ListBindings()).bindings}
    reasons = here.taken_dead_letters()
    assert reasons
    assert all(reason.startswith("QueueGone: no such queue: ") and reason.endswith(deleted) for reason in reasons)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["queue", "policy"])
def test_while_a_link_ingress_is_gone_or_lets_nobody_in_its_peers_keep_what_they_have(
    traffic: Traffic, what: str
) -> None:
    """It is the deployment's: no function may make it, and who puts it back by hand finds that nothing is lost."""
    here, there = traffic.here, traffic.there
    url = here.address.fifo_ingress_url
    name = url.rsplit("/", 1)[1]
    kept = here.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    wanted = ("FifoQueue", "Policy", "VisibilityTimeout", "RedrivePolicy", "DeduplicationScope", "FifoThroughputLimit")
    given = {each: kept[each] for each in wanted if each in kept}

    held = [0]

    def delete() -> None:
        if what == "queue":
            held[0] = here.count(name) + ON_ITS_WAY
            here.sqs.delete_queue(QueueUrl=url)
        else:
            here.sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
            time.sleep(POLICY_ACTS_S)  # the old one acts until then

    try:
        traffic.amid(delete)
        there.until_link(traffic.served().link, "Failed")
        assert traffic.served().state.startswith("Failed")
    finally:
        if what == "queue":
            make_queue(here.sqs, name, given)
        else:
            here.sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": given["Policy"]})
    lost = {*traffic.before, *traffic.after} - traffic.arrived()
    assert len(lost) <= held[0]
    assert there.taken_dead_letters() == []
