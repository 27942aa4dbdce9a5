"""The pipeline: messages through the splitter, landed by a drain run, and read back from the tables."""

import json
import secrets
from collections import Counter

from deltalake import DeltaTable

from sluice.aws.operator.control_client import ControlClient
from sluice.aws.splitting.queues import SplitQueues
from sluice.cli.pipeline.pipelines import STACK, AskedPipeline, pipeline_of
from sluice.demo import splitting
from sluice.local.jobs import JOBS_FOLDER, NoSpark
from sluice.message import Outgoing
from sluice.pipeline.operations import DrainQueue, RunView, ShowPipeline
from sluice.pipeline.runs import ENDED, JobStep, RunState
from sluice.smoke.runs import NotSo, Skipped
from sluice.smoke.sites import SmokeSite, looks
from sluice.smoke.stages import Stages

MESSAGES = 200
SPLIT_WITHIN_S = 120.0
STARTED_WITHIN_S = 300.0
LANDED_WITHIN_S = 840.0
LOOK_EVERY_S = 2.0
LINES = 20  # of a failed run's log


def land(stages: Stages) -> str:
    """Send messages, drain the queue into tables, and find each in them once. Skipped without a local Spark."""
    site = stages.here
    folder = stages.cloud.folder / JOBS_FOLDER / site.stage if stages.cloud else None
    asked = pipeline_of(site.connection, folder=folder, python=None)
    mark = secrets.token_hex(8)
    _send(site, mark)
    try:
        run = _ended(asked)
    except NoSpark as error:
        raise Skipped(str(error)) from None
    if run.state is not RunState.SUCCESS:
        raise NotSo(f"{run.run} was {run.state}: {run.detail}\n{asked.text(run.run, lines=LINES)}")
    root = str(folder) if folder else f"s3://{site.output(STACK, 'BucketName')}"
    table = DeltaTable(f"{root}/tables/messages", storage_options=None if folder else _options(site))
    rows = Counter(row["body"] for row in table.to_pyarrow_table(columns=["body"]).to_pylist() if mark in row["body"])
    if rows != Counter(_bodies(mark)):
        twice = sum(number > 1 for number in rows.values())
        raise NotSo(f"{len(rows)} of {MESSAGES} messages are in the table, {twice} of them more than once")
    seconds = ((run.ended_at_ms or run.started_at_ms) - run.started_at_ms) / 1000
    return f"{MESSAGES} landed once, by a run of {seconds:.0f} s"


def _send(site: SmokeSite, mark: str) -> None:
    """Send them through the splitter; returns when they are in the main queue, by SQS's own late count."""
    queue = splitting.split_queue(ControlClient.of(site.connection))
    queues = SplitQueues(site.connection.client("sqs"), queue.source)
    splitting.send(queues, queue, [Outgoing(body=body) for body in _bodies(mark)])
    main = queue.main.rsplit("/", 1)[1]
    for _ in looks(SPLIT_WITHIN_S, f"{MESSAGES} messages are in the main queue", every_s=LOOK_EVERY_S):
        if queues.count(main) >= MESSAGES:
            return


def _bodies(mark: str) -> list[str]:
    return [json.dumps({"smoke": mark, "n": number}) for number in range(MESSAGES)]


def _ended(asked: AskedPipeline) -> RunView:
    """Drain the queue; the run once it has ended."""
    for _ in looks(STARTED_WITHIN_S, "a drain run is started", every_s=LOOK_EVERY_S):
        outcome = asked.ask(DrainQueue())
        if outcome.step is JobStep.START:
            break
    for _ in looks(LANDED_WITHIN_S, f"run {outcome.run} has ended", every_s=LOOK_EVERY_S):
        [run] = [each for each in asked.ask(ShowPipeline()).runs if each.run == outcome.run]
        if run.state in ENDED:
            break
    return run


def _options(site: SmokeSite) -> dict[str, str]:
    """Give delta-rs our credentials: it reads no profiles.

    https://delta-io.github.io/delta-rs/integrations/object-storage/s3
    """
    credentials = site.connection.session.get_credentials()
    frozen = credentials.get_frozen_credentials() if credentials else None
    if frozen is None:
        raise NotSo("no AWS credentials")
    options = {
        "AWS_REGION": site.connection.region,
        "AWS_ACCESS_KEY_ID": str(frozen.access_key),
        "AWS_SECRET_ACCESS_KEY": str(frozen.secret_key),
    }
    return options | ({"AWS_SESSION_TOKEN": str(frozen.token)} if frozen.token else {})
