"""`sluice split run` as people use it: the command in a process of its own, with a program that reads its session."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sluice.splitting.operations import ListSessions, StopSession
from tests.deployed import Deployed
from tests.e2e.sessions import Splitting

QUEUE = "standard"
VISIBILITY_S = 5
# Says when it has a message; with `delete` it is done with it, else it is amid it until it is ended.
PROGRAM = """
import os, sys, time, boto3
sqs = boto3.client("sqs")
url = os.environ["ORDERS_URL"]
print("reading", flush=True)
while True:
    for message in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5).get("Messages", []):
        if "delete" in sys.argv:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            sys.exit(int(message["Body"]))
        print("amid", message["Body"], flush=True)
        time.sleep(60)
"""


@pytest.fixture
def splitting(deployed: Deployed) -> Splitting:
    found = Splitting(deployed)
    # A session's queue has it from its source: what was read and not deleted comes back after it.
    deployed.sqs.set_queue_attributes(
        QueueUrl=found.queues[QUEUE].source, Attributes={"VisibilityTimeout": str(VISIBILITY_S)}
    )
    return found


@contextmanager
def running(deployed: Deployed, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "sluice.cli.main", "split", "run", "--queue", f"ORDERS_URL={QUEUE}"]
    program = [sys.executable, "-c", PROGRAM, *arguments]
    process = subprocess.Popen(
        [*command, "--filter", f"{QUEUE}:client=^run$", "--", *program],
        # boto3 as it comes doesn't try a call of SQS again that is throttled.
        env={**os.environ, **deployed.cloud.environment(deployed.site), "AWS_RETRY_MODE": "standard"},
        stdout=subprocess.PIPE,
        text=True,
        # A shell lets what it starts in the background ignore ctrl-C, and the tests too, if it started them so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads hold locks here
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_program_reads_its_sessions_messages_and_its_exit_code_is_the_commands(
    deployed: Deployed, splitting: Splitting
) -> None:
    with running(deployed, "delete") as process:
        assert said(process) == "reading"
        splitting.send(QUEUE, ["42"], lambda _: {"client": "run"})
        assert process.wait(30) == 42
    splitting.until_all_ended()


def test_ctrl_c_amid_a_message_ends_the_session_and_the_consumer_gets_the_message(
    deployed: Deployed, splitting: Splitting
) -> None:
    with running(deployed) as process:
        assert said(process) == "reading"
        splitting.send(QUEUE, ["7"], lambda _: {"client": "run"})
        assert said(process) == "amid 7"
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert splitting.bodies(splitting.main(QUEUE), 1, within_s=60) == ["7"]


def test_a_session_that_is_stopped_elsewhere_ends_its_program(deployed: Deployed, splitting: Splitting) -> None:
    with running(deployed) as process:
        assert said(process) == "reading"
        [session] = [each for each in splitting.client.ask(ListSessions()).sessions if each.status == "Ready"]
        splitting.client.ask(StopSession(session_id=session.session_id))
        started = time.monotonic()
        assert process.wait(60) == 70
        assert time.monotonic() - started < 30
