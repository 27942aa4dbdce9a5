"""What the pipeline stores, kind by kind, as files: who changes a format sees it here.

Each file is written by today's code and read by it. A change of one says so in the changelog, reads what the file has,
and keeps the file beside its own.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from sluice.aws.pipeline.jobs import DynamoDesiredStates, EmrRuns
from sluice.errors import BadSnapshot
from sluice.local.jobs import FileDesiredStates
from sluice.pipeline.runs import DesiredState, Run, RunName, RunState, TargetState
from tests.tables import table_in_memory

FILES = Path(__file__).parents[1] / "stored" / "pipeline"
DRAINED = DesiredState(wanted=TargetState.DRAINED, since="2026-11-21T14:00:00.123Z")
RUN = Run(
    run_id="00g1",
    name=RunName("statistics", "3f2a51c09d8e7b64", "2026-11-20"),
    state=RunState.FAILED,
    created_at_ms=1_700_000_000_000,
    ended_at_ms=1_700_000_060_000,
    detail="out of memory",
)


def stored(name: str) -> Any:
    return json.loads((FILES / f"{name}.json").read_text())


@pytest.fixture
def table() -> Iterator[Any]:
    with table_in_memory() as client:
        yield client


def test_what_is_wanted_is_written_as_it_is_kept(table: Any) -> None:
    states = DynamoDesiredStates(client=table, table="t")
    assert states.load() is None
    states.save(DRAINED)
    assert table.scan(TableName="t")["Items"] == [stored("desired_state")]


def test_what_is_wanted_is_read_from_what_is_kept(table: Any) -> None:
    table.put_item(TableName="t", Item=stored("desired_state"))
    assert DynamoDesiredStates(client=table, table="t").load() == DRAINED


def test_what_another_version_has_written_isn_t_guessed_at(table: Any) -> None:
    item = stored("desired_state")
    item["value"]["S"] = item["value"]["S"].replace('"version":1', '"version":2')
    table.put_item(TableName="t", Item=item)
    with pytest.raises(BadSnapshot, match="desired-state of version 2: this program reads desired-state of 1"):
        DynamoDesiredStates(client=table, table="t").load()


def test_a_local_site_keeps_the_same_text_in_a_file(tmp_path: Path) -> None:
    states = FileDesiredStates(tmp_path / "site")
    assert states.load() is None
    states.save(DRAINED)
    assert (tmp_path / "site" / "desired-state.json").read_text() == stored("desired_state")["value"]["S"]
    assert states.load() == DRAINED


def test_a_run_is_known_by_its_name() -> None:
    assert str(RUN.name) == stored("job_run")["name"]
    client = boto3.client(
        "emr-serverless", region_name="eu-central-1", aws_access_key_id="t", aws_secret_access_key="t"
    )
    described = {"applicationId": "app", "arn": "a" * 60, "createdBy": "c" * 20, "executionRole": "r" * 20}
    times = [datetime.fromtimestamp(at_ms / 1000, tz=UTC) for at_ms in (RUN.created_at_ms, RUN.ended_at_ms)]
    run = {**described, **stored("job_run"), "id": "00g1", "releaseLabel": "l"}
    listed = {"jobRuns": [run | {"createdAt": times[0], "updatedAt": times[1]}]}
    with Stubber(client) as stub:
        nothing: dict[str, Any] = {"jobRuns": []}
        for answer in (nothing, nothing, listed, nothing):  # by mode, live ones and all
            stub.add_response("list_job_runs", answer)
        assert EmrRuns(client=client, application_id="app", role_arn="r").list_runs(now_ms=0) == [RUN]
