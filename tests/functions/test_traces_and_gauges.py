"""What operations hold on to: gauges that functions publish, and traces that their messages keep, on moto."""

import json

import pytest

from functions.bridge import handler as bridge
from functions.links import handler as links
from sluice.aws.federation.queues import SqsSiteQueues
from sluice.errors import CallFailed
from sluice.message import TRACE_HEADER, Message
from tests.functions import test_federation_handlers
from tests.functions.conftest import CONTEXT, Surroundings
from tests.functions.test_federation_handlers import forward, routed, send_fifo, url_of

federation = test_federation_handlers.federation  # a fixture
TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"


def metrics(said: str, name: str) -> list[tuple[dict[str, str], float]]:
    """The dimensions and values under which a metric was published."""
    documents = [json.loads(line) for line in said.splitlines() if '"_aws"' in line and f'"{name}"' in line]
    found = []
    for document in documents:
        [directive] = document["_aws"]["CloudWatchMetrics"]
        [dimensions] = directive["Dimensions"]
        [value] = document[name]
        found.append(({dimension: document[dimension] for dimension in dimensions}, value))
    return found


def send_traced(surroundings: Surroundings, url: str, body: str, **attributes: str) -> None:
    surroundings.sqs.send_message(
        QueueUrl=url,
        MessageBody=body,
        MessageAttributes={name: {"DataType": "String", "StringValue": text} for name, text in attributes.items()},
        MessageSystemAttributes={TRACE_HEADER: {"DataType": "String", "StringValue": TRACE}},
    )


def traces(surroundings: Surroundings, url: str) -> dict[str, str | None]:
    """By body."""
    event = surroundings.event(url)
    return {record["body"]: record["attributes"].get(TRACE_HEADER) for record in event["Records"]}


def test_an_offers_own_trace_is_read_from_its_message(surroundings: Surroundings) -> None:
    send_traced(surroundings, surroundings.offers_url, "offer", ClientID="c")
    [record] = surroundings.event(surroundings.offers_url)["Records"]
    assert Message.from_lambda(record).trace_header == TRACE


def test_an_offer_without_a_trace_has_none(surroundings: Surroundings) -> None:
    surroundings.send(surroundings.offers_url, "offer", {"ClientID": "c"})
    [record] = surroundings.event(surroundings.offers_url)["Records"]
    assert Message.from_lambda(record).trace_header is None


def test_what_is_forwarded_is_told_by_route_and_of_all(
    federation: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    """By route for the dashboard; of all for the alarm, which can name no route that is made later."""
    routed(federation)
    send_fifo(federation, "route.fifo", "1")
    event = federation.event(url_of(federation, "route.fifo"))
    for record in event["Records"]:
        record["attributes"]["SentTimestamp"] = "1"
    assert bridge.handler(event, CONTEXT) == {"batchItemFailures": []}
    found = {tuple(sorted(dimensions.items())) for dimensions, _ in metrics(capsys.readouterr().out, "LagMs")}
    assert found == {(("service", "bridge"),), (("route", "route"), ("service", "bridge"))}


def test_what_was_found_missing_of_a_route_is_said_with_what_was_lost(
    federation: Surroundings, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    routed(federation)  # its queue has been made by hand, and is bound to nothing
    links.handler({"op": "sweep"}, CONTEXT)
    said = capsys.readouterr().out
    assert metrics(said, "Repaired") == [({"service": "links"}, 1.0)] * 3
    assert metrics(said, "MessagesLost") == [({"service": "links"}, 0.0)] * 3
    logged = [vars(record) for record in caplog.records if record.message == "Repaired"]
    assert [(each["resource"], each["routes"]) for each in logged] == [
        ("binding", ("route",)),
        ("queue's settings", ("route",)),
        ("event source mapping", ("route",)),
    ]


def test_routes_that_carry_nothing_are_counted_at_every_sweep_also_where_it_fails(
    federation: Surroundings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    links.handler({"op": "sweep"}, CONTEXT)
    assert not metrics(capsys.readouterr().out, "RoutesDown")  # of a site without routes
    routed(federation, peer_ingress="gone.fifo")
    send_fifo(federation, "route.fifo", "1")
    assert forward(federation) == ["1"]
    for record in federation.event(federation.timeouts_url)["Records"]:
        links.handler(json.loads(record["body"]), CONTEXT)  # the outage is told
    capsys.readouterr()

    def refuse(*_: object, **__: object) -> str:
        raise CallFailed("SetQueueAttributes", "AccessDenied", "no right")

    monkeypatch.setattr(SqsSiteQueues, "configure", refuse)
    with pytest.raises(CallFailed, match="SetQueueAttributes"):
        links.handler({"op": "sweep"}, CONTEXT)
    assert metrics(capsys.readouterr().out, "RoutesDown") == [({"service": "links"}, 1.0)]
