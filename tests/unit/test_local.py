"""The embedded cloud's own parts: what a site is, and what the request log says."""

import json
from pathlib import Path

import pytest

from sluice.local.requests import BY_CALL, BY_TRIGGER, RequestLog, action_and_queue, by_action, read_requests
from sluice.local.sites import BadSite, Site


def test_a_site_is_an_account_and_a_region() -> None:
    assert Site.parse("000000000000/eu-central-1") == Site("000000000000", "eu-central-1")
    assert str(Site.parse("123456789012/us-gov-west-1")) == "123456789012/us-gov-west-1"


@pytest.mark.parametrize("text", ["", "eu-central-1", "12345/eu-central-1", "000000000000/", "000000000000/europe"])
def test_what_is_no_site_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadSite, match="000000000000/eu-central-1"):
        Site.parse(text)


def test_a_request_is_read_in_both_of_sqs_protocols() -> None:
    body = json.dumps({"QueueUrl": "http://127.0.0.1:1/000000000000/q"}).encode()
    assert action_and_queue({"x-amz-target": "AmazonSQS.SendMessage"}, body, {}) == ("SendMessage", "q")
    assert action_and_queue({}, b"Action=GetQueueUrl&QueueName=q", {}) == ("GetQueueUrl", "q")
    assert action_and_queue({}, b"", {"Action": ["DeleteQueue"], "QueueUrl": ["http://h/0/q"]}) == ("DeleteQueue", "q")
    assert action_and_queue({"x-amz-target": "AmazonSQS.ListQueues"}, b"not JSON", {}) == ("ListQueues", "")


def test_the_log_counts_triggers_apart_and_skips_a_line_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    log = RequestLog(path)
    log.note(action="ReceiveMessage", queue="q", by=BY_CALL)
    offset = path.stat().st_size
    log.note(action="ReceiveMessage", queue="q", by=BY_TRIGGER)
    log.note(action="ReceiveMessage", queue="q", by=BY_CALL, status=403)
    with path.open("a") as file:
        file.write('{"at_ms": 1, "act')
    assert by_action(read_requests(path)) == {"ReceiveMessage": 2, "trigger ReceiveMessage": 1}
    assert [request.status for request in read_requests(path, offset=offset)] == [200, 403]
