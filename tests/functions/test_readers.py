"""The readers' alias of the functions that operators ask: through it a function changes nothing."""

from types import SimpleNamespace
from typing import Any, get_args

import pytest

from functions.control import handler as control
from functions.jobs import handler as jobs
from functions.links import handler as links
from functions.sweeper import handler as sweeper
from sluice.federation.operations import FederationOperation
from sluice.operations import READER
from sluice.pipeline.operations import JobsOperation
from sluice.rendezvous.operations import SweeperOperation
from sluice.splitting.operations import ControlOperation
from tests.functions.conftest import CONTEXT

READERS: Any = SimpleNamespace(**vars(CONTEXT) | {"invoked_function_arn": f"{CONTEXT.invoked_function_arn}:{READER}"})
MODULES: dict[str, Any] = {"control": control, "links": links, "jobs": jobs, "sweeper": sweeper}
BATCH = {"Records": [{"eventSourceARN": "arn:aws:sqs:eu-central-1:1:q", "body": '{"op": "tick"}', "messageId": "1"}]}


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("control", {"op": "stop", "session_id": "s"}),
        ("control", {"op": "heartbeat", "session_id": "s"}),
        ("links", {"op": "bind", "exchange": "e", "queue": "q"}),
        ("links", {"op": "redrive", "name": "r"}),
        ("jobs", {"op": "drain"}),
        ("sweeper", {"op": "sweep"}),
        ("sweeper", {}),  # as the schedule's
    ],
)
def test_readers_change_nothing(name: str, request_: dict[str, Any]) -> None:
    assert "may only read" in MODULES[name].handler(request_, READERS)["error"]


@pytest.mark.parametrize("name", ["control", "links", "jobs"])
def test_a_batch_of_a_reader_is_no_queue_s(name: str) -> None:
    assert "no such operation" in MODULES[name].handler(BATCH, READERS)["error"]


def test_an_operation_has_to_be_declared_to_be_a_reader_s() -> None:
    unions = (ControlOperation, FederationOperation, JobsOperation, SweeperOperation)
    operations = [operation for union in unions for operation in get_args(union)]
    assert {operation.__name__ for operation in operations if operation.only_reads} == {
        *("ListQueues", "FindSession", "ShowSplitting"),
        *("ShowSite", "ListBindings", "ListPaths"),
        *("ShowPipeline", "ShowRendezvous"),
    }
    assert not any(operation.only_reads and operation.changes for operation in operations)
