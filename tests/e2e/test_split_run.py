"""`sluice split run` as people use it: the command in a process of its own, with a program that reads its session."""

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.cli.program import app
from sluice.splitting.operations import StopSession
from tests.deployed import LOOK_EVERY_S, Deployed
from tests.e2e.commands import noted, program, running, said
from tests.e2e.functions_deployed import deploy
from tests.e2e.sessions import Splitting, by_attribute, url_of

QUEUE = "standard"
VISIBILITY_S = 5
MINE = ["--filter", f"{QUEUE}:client=^run$"]
# Says when it has a message; with `delete` it is done with it, else it is amid it until it is ended.
PROGRAM = """
import os, sys, time, boto3
from botocore.config import Config
sqs = boto3.client("sqs", config=Config(retries={"mode": "standard", "total_max_attempts": 10}))  # the cloud throttles
url = os.environ["ORDERS_URL"]
assert sqs.get_queue_url(QueueName=os.environ["ORDERS_NAME"])["QueueUrl"] == url
print("reading", flush=True)
while True:
    for message in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5).get("Messages", []):
        if "delete" in sys.argv:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            sys.exit(int(message["Body"]))
        print("amid", message["Body"], flush=True)
        time.sleep(60)
"""
# Fails a message when it first has it; says what it has done, and where.
HANDLER = """
import os
failed = set()
def handle(event, context):
    found = []
    for record in event["Records"]:
        if record["messageId"] in failed:
            print(record["body"], record["messageAttributes"]["client"]["stringValue"], os.environ["WHERE"], flush=True)
        else:
            failed.add(record["messageId"])
            found.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": found}
"""
FUNCTION = "their-orders"


@pytest.fixture
def splitting(deployed: Deployed) -> Splitting:
    found = Splitting(deployed)
    found.ask_all_to_stop()  # `ready_one` would find the session of a command that an earlier test has killed
    # A session's queue has it from its source: what was read and not deleted comes back after it.
    deployed.sqs.set_queue_attributes(
        QueueUrl=found.queues[QUEUE].source, Attributes={"VisibilityTimeout": str(VISIBILITY_S)}
    )
    return found


def reading(deployed: Deployed, *arguments: str) -> AbstractContextManager["subprocess.Popen[str]"]:
    return running(deployed, "split", "run", "--queue", f"ORDERS_URL={QUEUE}", *MINE, *program(PROGRAM, *arguments))


def until_empty(deployed: Deployed, url: str) -> None:
    """Until what was received there is deleted."""
    deadline = time.monotonic() + 120
    while deployed.depth(url):
        assert time.monotonic() < deadline
        time.sleep(LOOK_EVERY_S)


def test_a_program_reads_its_sessions_messages_and_its_exit_code_is_the_commands(
    deployed: Deployed, splitting: Splitting
) -> None:
    with reading(deployed, "delete") as process:
        assert said(process) == "reading"
        splitting.send(QUEUE, ["42"], lambda _: {"client": "run"})
        assert process.wait(30) == 42
    splitting.until_all_ended()


def send_once_ready(splitting: Splitting) -> None:
    splitting.ready_one()
    splitting.send(QUEUE, ["43"], lambda _: {"client": "run"})


def test_with_local_a_program_reaches_that_cloud_and_no_other_whatever_its_caller_is_at(
    deployed: Deployed, splitting: Splitting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.operator.site_names.find_cloud", lambda: deployed.cloud)
    for name in ("AWS_ENDPOINT_URL_SQS", "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.setenv(name, "elsewhere")
    where = ["--local", str(deployed.site), "--queue", f"ORDERS_URL={QUEUE}"]
    with ThreadPoolExecutor(1) as producer:
        producer.submit(send_once_ready, splitting)
        done = CliRunner().invoke(app, ["split", "run", *where, *MINE, *program(PROGRAM, "delete")])
    assert done.exit_code == 43, done.output
    splitting.until_all_ended()


def test_ctrl_c_amid_a_message_ends_the_session_and_the_consumer_gets_the_message(
    deployed: Deployed, splitting: Splitting
) -> None:
    with reading(deployed) as process:
        assert said(process) == "reading"
        splitting.send(QUEUE, ["7"], lambda _: {"client": "run"})
        assert said(process) == "amid 7"
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert splitting.bodies(splitting.main(QUEUE), 1, within_s=120) == ["7"]


def test_a_session_that_is_stopped_elsewhere_ends_its_program(deployed: Deployed, splitting: Splitting) -> None:
    with reading(deployed) as process:
        assert said(process) == "reading"
        session = splitting.ready_one()
        splitting.client.ask(StopSession(session_id=session.session_id))
        assert process.wait(60) == 70
        assert noted(process)[-1] == "the session ended before the program: Stopped"


@pytest.mark.slow
def test_a_machine_that_slept_past_the_sessions_end_ends_its_program(deployed: Deployed, splitting: Splitting) -> None:
    with reading(deployed) as process:
        assert said(process) == "reading"
        session = splitting.ready_one()
        os.killpg(process.pid, signal.SIGSTOP)
        splitting.stop(session.session_id)
        os.killpg(process.pid, signal.SIGCONT)
        assert process.wait(60) == 70
        assert noted(process)[-1].startswith("the session ended before the program: ")


@pytest.mark.slow  # half a minute without a heartbeat
def test_a_command_that_was_killed_leaves_no_session_and_the_consumer_gets_its_messages(
    deployed: Deployed, splitting: Splitting
) -> None:
    with reading(deployed) as process:
        assert said(process) == "reading"
        session = splitting.ready_one()
        splitting.send(QUEUE, ["11"], lambda _: {"client": "run"})
        assert said(process) == "amid 11"
        os.killpg(process.pid, signal.SIGKILL)
        ended = splitting.until(session.session_id, lambda status: status == "Ended")
        assert ended.reason == "Unused"
    assert splitting.bodies(splitting.main(QUEUE), 1, within_s=120) == ["11"]


def test_a_functions_handler_runs_here_and_what_it_fails_comes_again(
    deployed: Deployed, splitting: Splitting, tmp_path: Path
) -> None:
    deploy(deployed, FUNCTION, "def handler(*_): pass", Environment={"Variables": {"WHERE": "deployed's variables"}})
    (tmp_path / "orders.py").write_text(HANDLER)
    local = ["--lambda", FUNCTION, "--handler", "orders.handle"]
    with running(deployed, "split", "run", *local, *MINE, cwd=tmp_path) as process:
        session = splitting.ready_one()
        splitting.send(QUEUE, ["8"], lambda _: {"client": "run"})
        assert said(process) == "8 run deployed's variables"
        until_empty(deployed, url_of(session, QUEUE))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    splitting.until_all_ended()
    # What the session had unread would be with the consumer by now, before this message.
    splitting.send(QUEUE, ["after it"], lambda _: {"client": "another"})
    assert splitting.bodies(splitting.main(QUEUE), 1) == ["after it"]


def test_what_went_to_a_session_is_told_as_it_goes(deployed: Deployed, splitting: Splitting) -> None:
    with (
        splitting.sessions({QUEUE: by_attribute("client", "^run$")}) as [session],
        running(deployed, "split", "tail", session.session_id, "--json") as process,
    ):
        splitting.send(QUEUE, ["9"], lambda _: {"client": "run"})
        told = json.loads(said(process))
        [message] = splitting.messages(url_of(session, QUEUE), 1)
    assert message["Body"] == "9"
    assert (told["queue"], told["session"], told["mode"]) == (QUEUE, session.session_id, "steal")
