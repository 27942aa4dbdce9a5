"""Stages' names: whose a name is, and that it is in what functions make and what the command line asks for."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from sluice.aws import metrics
from sluice.aws.connections import connect_environment
from sluice.aws.deployment import NotDeployed, read_stack_outputs
from sluice.cli.sites import SiteCommands
from sluice.errors import CallFailed
from sluice.federation.bridge_provisioner import build_bridge_queue_name
from sluice.federation.links.links import Bridge
from sluice.local.sites import BadSite, Site, peer_stages, sites_to_deploy
from sluice.operator.metrics import read_lags
from sluice.operator.site_names import SiteOptions, get_site_options
from sluice.peers.methods import ClientTimeouts, Denied, RendezvousMethod, Reply, exchange_over_sqs
from sluice.pipeline.jobs import Landing, SqsEndpoint, StorageLocations
from sluice.rendezvous.mailbox import Mailbox
from sluice.splitting.consumers.mounted_files import is_temporary
from sluice.splitting.consumers.temporary_queues import build_name_prefix, temporary_queue_name
from sluice.splitting.settings import ControlSettings
from sluice.stages import STAGE, add_stage_prefix, is_stage, parse_stage
from tests.fakes import Meeting

STAGES = st.one_of(st.none(), st.from_regex(STAGE, fullmatch=True).filter(is_stage))
OURS = st.sampled_from(["sluice-tmp-", "sluice-queue-", "sluice-bridge-", "snowflake-client-", "SluiceState-"])
REGION = "eu-central-1"
VARIABLES = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": REGION}
ROUTE = Bridge(name="route", link="link", src="amq.topic", dest="amq.topic", fifo=False)


@given(one=STAGES, other=STAGES, name=OURS, base=OURS, rest=st.from_regex("[A-Za-z0-9-]{0,20}", fullmatch=True))
def test_what_one_stages_names_begin_with_no_others_do(
    one: str | None, other: str | None, name: str, base: str, rest: str
) -> None:
    assert parse_stage(add_stage_prefix(name + rest, one)) == one
    assert add_stage_prefix(name + rest, one).startswith(add_stage_prefix(base, other)) == (
        one == other and (name + rest).startswith(base)
    )


@pytest.mark.parametrize("text", ["", "Dev", "1dev", "dev-1", "dev_1", "sluice", "snowflake", "longerer", "dev\n"])
def test_what_is_no_stage(text: str) -> None:
    assert not is_stage(text)


def test_temporary_queues_are_the_stages_and_the_deployments() -> None:
    def settings(stage: str | None) -> ControlSettings:
        told: dict[str, Any] = {"table": "t", "dead_letters_url": "d", "control_queue_url": "c"}
        return ControlSettings(**told, split_queues=(), counts_settle_s=0, stage=stage)

    tags = {stage: settings(stage).deployment for stage in (None, "dev", "dev2")}
    for stage, tag in tags.items():
        names = [
            temporary_queue_name("o" * 80, deployment=tag, token="t" * 12, is_main=which) for which in (False, True)
        ]
        assert all(name.startswith(add_stage_prefix("sluice-tmp-", stage)) and len(name) == 80 for name in names)
        assert all(is_temporary(name) and name.startswith(build_name_prefix(tag)) for name in names)
        assert not any(
            name.startswith(build_name_prefix(other)) for name in names for other in tags.values() if other != tag
        )


@pytest.mark.parametrize("tag", ["Dev-abcdef", "-abcdef", "sluice-abcdef", "dev-2-abcdef"])
def test_a_deployments_tag_has_a_stage_or_none(tag: str) -> None:
    with pytest.raises(ValueError, match="after its stage"):
        temporary_queue_name("o", deployment=tag, token="t" * 12)


def test_a_bridges_queue_is_the_stages() -> None:
    assert build_bridge_queue_name("A", ROUTE, stage="dev") == f"dev-{build_bridge_queue_name('A', ROUTE)}"


def test_a_mailbox_is_the_stages() -> None:
    made: list[str] = []

    class Queues:
        def create(self, name: str, _: object) -> str:
            made.append(name)
            return name

    mailboxes: Any = SimpleNamespace(record=lambda *_, **__: None)
    queues: Any = Queues()
    site = replace(Meeting().dependencies(), queues=queues, new_id=lambda: "id")
    assert Mailbox(site, mailboxes, "dev-sluice-mailbox-").get_url() == made[0]
    assert made == ["dev-sluice-mailbox-id"]


def test_a_client_looks_for_the_answer_that_its_site_gives() -> None:
    class Broker:
        async def send_offer(self, client_id: str, body: str) -> None:
            pass

        async def queue_url(self, name: str) -> str:
            assert name == "dev-snowflake-client-id"
            return name

        async def receive(self, queue_url: str, *, wait_s: int) -> str | None:
            return json.dumps({"error": queue_url})

    async def exchange(method: RendezvousMethod) -> Reply:
        return await method("offer")

    broker: Any = Broker()
    rendezvous = exchange_over_sqs(
        broker, patience=ClientTimeouts(before_lookup_s=0), draw_id=lambda: "id", answer_prefix="dev-snowflake-client-"
    )
    assert asyncio.run(exchange(rendezvous)) == Denied("dev-snowflake-client-id")


def test_counts_go_to_the_namespace_that_the_function_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "dev-Sluice")
    metrics.publish("staged-test", {"Count": 1})
    said = json.loads(capsys.readouterr().out)
    assert said["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "dev-Sluice"


def test_lags_are_read_from_the_stages_namespace() -> None:
    asked: list[str] = []

    class CloudWatch:
        def get_paginator(self, _: str) -> "CloudWatch":
            return self

        def paginate(self, *, MetricDataQueries: list[Any], **_: object) -> list[Any]:  # noqa: N803 - AWS's
            asked.extend(each["MetricStat"]["Metric"]["Namespace"] for each in MetricDataQueries)
            return []

    for stage in (None, "dev"):
        read_lags(CloudWatch(), {"route": None}, now_ms=0, stage=stage)
    assert asked == ["Sluice", "dev-Sluice"]


def test_the_land_job_is_told_the_stages_namespace() -> None:
    landing = Landing(
        queue_url="q", places=StorageLocations(root="/r"), sqs_endpoint=SqsEndpoint(region=REGION), trigger_s=1
    )
    staged_ = Landing(
        queue_url="q",
        places=StorageLocations(root="/r"),
        sqs_endpoint=SqsEndpoint(region=REGION),
        trigger_s=1,
        metrics="dev-Sluice/Spark",
    )
    place = list(landing.arguments()).index("--metrics")
    assert [*landing.arguments()[: place + 1], "dev-Sluice/Spark", *landing.arguments()[place + 1 :]] == list(
        staged_.arguments()
    )


# The command line


def test_a_stack_is_looked_for_by_its_stages_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class CloudFormation:
        def describe_stacks(self, *, StackName: str) -> None:  # noqa: N803 - AWS's
            asked.append(StackName)
            raise CallFailed("DescribeStacks", "ValidationError", "no such stack")

        def get_parameters_by_path(self, *, Path: str) -> dict[str, list[str]]:  # noqa: N803 - AWS's
            asked.append(Path)
            return {"Parameters": []}

    connection = connect_environment({**VARIABLES, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, stage="dev")
    monkeypatch.setattr(type(connection), "client", lambda *_: CloudFormation())
    with pytest.raises(NotDeployed, match="stack dev-SluiceState is not deployed"):
        read_stack_outputs(connection, "SluiceState")
    assert asked == ["dev-SluiceState", "/dev-SluiceState/outputs"]


def program() -> SiteCommands:
    app = SiteCommands()

    @app.command()
    def site() -> None:
        typer.echo(f"{get_site_options().stage}")

    @app.command()
    def named(name: str, *, site: SiteOptions) -> None:
        typer.echo(f"{name} {site.stage}")

    return app


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["site"], {}, "None"),
        (["site", "--stage", "dev"], {}, "dev"),
        (["site"], {"SLUICE_STAGE": "dev"}, "dev"),
        (["site"], {"SLUICE_STAGE": ""}, "None"),
        (["named", "x", "--stage", "test"], {"SLUICE_STAGE": "dev"}, "x test"),
    ],
)
def test_a_command_is_about_the_stage_that_is_said(
    arguments: list[str], environment: dict[str, str], said: str
) -> None:
    assert CliRunner().invoke(program(), arguments, env=environment).output == f"{said}\n"
    assert get_site_options() == SiteOptions()


def test_a_command_refuses_what_is_no_stage() -> None:
    refused = CliRunner().invoke(program(), ["site", "--stage", "Dev"])
    assert refused.exit_code == 2
    assert "'Dev' is not a stage's name" in refused.output


# The embedded cloud

UNSTAGED, DEV, DEV2 = (Site("000000000000", REGION, stage) for stage in (None, "dev", "dev2"))


def test_a_site_of_the_embedded_cloud_may_have_a_stage() -> None:
    assert Site.parse(f"000000000000/{REGION}:dev") == DEV
    assert [str(each) for each in (UNSTAGED, DEV)] == [f"000000000000/{REGION}", f"000000000000/{REGION}:dev"]
    for text in (f"{UNSTAGED}:", f"{UNSTAGED}:sluice", f"{UNSTAGED}:Dev"):
        with pytest.raises(BadSite):
            Site.parse(text)


def test_sites_of_several_stages_let_each_other_in() -> None:
    assert peer_stages([DEV, UNSTAGED]) == ["", "dev"]
    assert peer_stages([DEV, DEV]) == []
    assert sites_to_deploy((UNSTAGED,), (DEV,)) == (DEV, UNSTAGED)
    assert sites_to_deploy((UNSTAGED, DEV), (DEV,)) == (DEV,)
