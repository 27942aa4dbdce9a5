"""The embedded cloud's own parts: what a site is, and what the request log says."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.local.cloud import FILE, STATE, describe_lost_state, start_cloud
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.processes import end_session
from sluice.local.requests import BY_CALL, BY_TRIGGER, RequestLog, parse_action_and_queue
from sluice.local.sites import BadSite, Site, peer_accounts, sites_to_deploy
from tests.sqs_requests import by_action, read_requests

MEMBER = """
member = subprocess.Popen(["sleep", "600"], process_group=0)
os.kill(member.pid, signal.SIGSTOP)
print(member.pid, flush=True)
member.wait()
"""


def test_a_site_is_an_account_and_a_region() -> None:
    assert Site.parse("000000000000/eu-central-1") == Site("000000000000", "eu-central-1")
    assert str(Site.parse("123456789012/us-gov-west-1")) == "123456789012/us-gov-west-1"


@pytest.mark.parametrize("text", ["", "eu-central-1", "12345/eu-central-1", "000000000000/", "000000000000/europe"])
def test_what_is_no_site_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadSite, match="000000000000/eu-central-1"):
        Site.parse(text)


HERE, BESIDE, THERE = (Site.parse(f"{account}/{region}") for account, region in (
    ("111111111111", "us-east-1"), ("111111111111", "eu-west-1"), ("222222222222", "eu-west-1")
))  # fmt: skip


def test_sites_of_several_accounts_let_each_other_in() -> None:
    assert peer_accounts([THERE, HERE, BESIDE]) == ["111111111111", "222222222222"]
    assert peer_accounts([HERE, BESIDE]) == []


def test_with_a_new_account_the_sites_that_are_there_are_deployed_again() -> None:
    assert sites_to_deploy((), (HERE, THERE)) == (HERE, THERE)
    assert sites_to_deploy((HERE,), (BESIDE,)) == (BESIDE,)
    assert sites_to_deploy((HERE, BESIDE), (HERE, THERE)) == (HERE, THERE, BESIDE)


def test_what_cant_come_back_of_the_last_cloud_is_said(tmp_path: Path) -> None:
    assert "there is no saved state" in (describe_lost_state(tmp_path / "none") or "")
    (tmp_path / STATE).mkdir()
    assert "there is no saved state" in (describe_lost_state(tmp_path) or "")
    (tmp_path / STATE / "sqs.json").write_text("{}")
    assert describe_lost_state(tmp_path) is None
    (tmp_path / FILE).write_text("{}")  # as it is while a cloud runs, or has died
    assert "the state saved before that is restored" in (describe_lost_state(tmp_path) or "")
    (tmp_path / STATE / "sqs.json").unlink()
    assert "nothing is restored" in (describe_lost_state(tmp_path) or "")


def test_a_request_is_read_in_both_of_sqs_protocols() -> None:
    body = json.dumps({"QueueUrl": "http://127.0.0.1:1/000000000000/q"}).encode()
    assert parse_action_and_queue({"x-amz-target": "AmazonSQS.SendMessage"}, body, {}) == ("SendMessage", "q")
    assert parse_action_and_queue({}, b"Action=GetQueueUrl&QueueName=q", {}) == ("GetQueueUrl", "q")
    assert parse_action_and_queue({}, b"", {"Action": ["DeleteQueue"], "QueueUrl": ["http://h/0/q"]}) == (
        "DeleteQueue",
        "q",
    )
    assert parse_action_and_queue({"x-amz-target": "AmazonSQS.ListQueues"}, b"not JSON", {}) == ("ListQueues", "")


def test_the_log_counts_triggers_apart_and_skips_a_line_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    log = RequestLog(path)
    log.write_entry(action="ReceiveMessage", queue="q", by=BY_CALL)
    offset = path.stat().st_size
    log.write_entry(action="ReceiveMessage", queue="q", by=BY_TRIGGER)
    log.write_entry(action="ReceiveMessage", queue="q", by=BY_CALL, status=403)
    with path.open("a") as file:
        file.write('{"at_ms": 1, "act')
    assert by_action(read_requests(path)) == {"ReceiveMessage": 2, "trigger ReceiveMessage": 1}
    assert [request.status for request in read_requests(path, offset=offset)] == [200, 403]


def test_what_a_harsh_cloud_does_is_handed_on_as_text() -> None:
    behaviours = Behaviours(seed=7, scale=0.5, queue_appears_s=2.0, queues_there_at_once="a.*")
    assert Behaviours.parse(behaviours.text()) == behaviours
    assert behaviours.scale_delay(behaviours.queue_appears_s) == 1.0


@pytest.mark.parametrize("wrong", [{"scale": -1.0}, {"queue_appears_s": -1.0}, {"queue_appears_late": 1.5}])
def test_a_chance_is_at_most_one_and_no_delay_negative(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Behaviours(**wrong)


def test_ctrl_c_while_the_cloud_starts_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start_cloud(tmp_path / "cloud", server="tests.unit.local.interrupting_server")
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_a_session_ends_with_all_its_groups() -> None:
    """Also what is stopped, and what leads a group of its own, as functions do."""
    leader = subprocess.Popen(["sleep", "600"], start_new_session=True)
    source = f"import os, signal, subprocess, sys; os.setsid(); print(os.getpid(), flush=True)\n{MEMBER}signal.pause()"
    session = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert session.stdout is not None
    pids = [int(session.stdout.readline()) for _ in range(2)]
    try:
        end_session(pids[0])
        assert session.wait(timeout=30) == -signal.SIGKILL
        assert session.stdout.read() == ""  # whose end comes when the member, too, has ended
        assert leader.poll() is None
    finally:
        leader.kill()
        leader.wait()
        session.stdout.close()
