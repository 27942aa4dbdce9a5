"""`sluice split register`: a queue is adopted only if it is said who reads it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sluice.cli.program import app
from sluice.cli.splitting.registration import BadRegistration, parse_consumer

ARN = "arn:aws:sqs:eu-central-1:123456789012:"
SOURCE, MAIN = f"{ARN}orders", f"{ARN}orders-main"
ADOPT = ("--source-arn", SOURCE, "--unchecked")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "cdk.json").write_text(json.dumps({"context": {"sluice": {}}}))
    return tmp_path


def register(project: Path, *options: str, queue_id: str = "orders") -> Result:
    return CliRunner().invoke(app, ["split", "register", queue_id, "--project", str(project), *options])


def registered(project: Path) -> list[dict[str, Any]]:
    sluice: dict[str, Any] = json.loads((project / "cdk.json").read_text())["context"]["sluice"]
    queues: list[dict[str, Any]] = sluice.get("splitting", {}).get("queues", [])
    return queues


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_a_source_is_adopted_only_if_it_is_said_who_reads_it(project: Path, dry_run: tuple[str, ...]):
    refused = register(project, *ADOPT, *dry_run)
    assert refused.exit_code
    assert f"nobody would read the messages of {SOURCE}" in refused.stderr
    for option in ("--consumer ", "--main-arn", "--consumer-follows"):
        assert option in refused.stderr
    assert registered(project) == []


@pytest.mark.parametrize(
    ("reader", "row"),
    [
        (("--main-arn", MAIN), f"reads {MAIN}"),
        (("--consumer", "lambda-trigger=orders:live"), f"trigger of function orders:live: reads {SOURCE}, and during"),
        (("--consumer-follows",), "is yours to point to the main queue"),
    ],
)
def test_the_plan_names_who_reads_the_messages(project: Path, reader: tuple[str, ...], row: str):
    planned = register(project, *ADOPT, *reader, "--dry-run", "--json")
    assert planned.exit_code == 0, planned.exception
    [consumer] = [each["how"] for each in json.loads(planned.stdout)["planned"] if each["what"] == "consumer"]
    assert row in consumer
    assert register(project, *ADOPT, *reader).exit_code == 0
    assert len(registered(project)) == 1


def test_consumers_that_are_re_pointed_need_no_main_queue(project: Path):
    options = (*ADOPT, "--consumer", "parameter=/shop/queue", "--dry-run", "--json")
    planned = json.loads(register(project, *options).stdout)["planned"]
    assert {"what": "queue", "how": "the main queue of orders"} not in planned


def test_who_reads_a_source_is_said_once(project: Path):
    for options in ((*ADOPT, "--main-arn", MAIN, "--consumer-follows"), ("--consumer-follows",)):
        assert "exclude each other" in register(project, *options).stderr
    assert registered(project) == []


@pytest.mark.parametrize(
    ("option", "fields"),
    [
        ("lambda-trigger=orders:live", {"type": "lambda trigger", "function": "orders:live"}),
        ("lambda trigger=arn:aws:lambda:x", {"type": "lambda trigger", "function": "arn:aws:lambda:x"}),
        ("lambda-variable=orders/QUEUE", {"type": "lambda variable", "function": "orders", "variable": "QUEUE"}),
        ("parameter=/shop/queue", {"type": "parameter", "name": "/shop/queue"}),
        (
            "ecs-variable=shop/orders/app/QUEUE",
            {"type": "ecs variable", "cluster": "shop", "service": "orders", "container": "app", "variable": "QUEUE"},
        ),
        (
            "kubernetes=eks/shop/Deployment/orders/QUEUE",
            {
                "type": "kubernetes",
                "cluster": "eks",
                "namespace": "shop",
                "kind": "Deployment",
                "name": "orders",
                "env": "QUEUE",
            },
        ),
        (
            'parameter={"name": "/a", "place": {"path": ["url"]}}',
            {"type": "parameter", "name": "/a", "place": {"path": ["url"]}},
        ),
    ],
)
def test_a_consumer_of_any_kind_is_an_option(option: str, fields: dict[str, Any]):
    assert parse_consumer(option) == fields


@pytest.mark.parametrize(
    ("option", "cause"),
    [
        ("celery=orders", "kubernetes"),
        ("lambda-trigger", "lambda-trigger=FUNCTION"),
        ("ecs-variable=shop/orders", "ecs-variable=CLUSTER/SERVICE/CONTAINER/VARIABLE"),
        ("parameter={", "JSON"),
    ],
)
def test_a_consumer_that_isnt_understood_is_refused_with_its_form(option: str, cause: str):
    with pytest.raises(BadRegistration, match=cause):
        parse_consumer(option)


@pytest.mark.parametrize(
    ("source", "main"),
    [(SOURCE, f"{ARN}other"), (f"{ARN}other", SOURCE), (MAIN, f"{ARN}other"), (f"{ARN}self", f"{ARN}self")],
)
def test_loops_and_doubles_across_entries_are_refused(project: Path, source: str, main: str):
    assert register(project, *ADOPT, "--main-arn", MAIN).exit_code == 0
    options = ("--source-arn", source, "--main-arn", main, "--unchecked")
    refused = register(project, *options, queue_id="again")
    assert refused.exit_code
    assert "a source queue can be listed only once" in refused.stderr
    assert len(registered(project)) == 1
