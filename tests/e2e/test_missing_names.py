"""Commands about what isn't there, on a deployed site: each says so and fails, so that scripts notice."""

import pytest
from typer.testing import CliRunner

from sluice.cli.program import app
from tests.deployed import Deployed

NAMES_NOTHING = [
    "split status nosuch",
    "split stop nosuch",
    "split release nosuch",
    "split tail nosuch --no-follow",
    "split tail --queue nosuch --no-follow",
    "permissions nosuch",
    "exchange del SITE nosuch",
    "binding add SITE nosuch sluice-queue-1 k",
    "binding add SITE amq.topic nosuch k",
    "binding del SITE nosuch sluice-queue-1 k",
    "binding del SITE amq.topic nosuch k",
    "binding list SITE nosuch",
    "peer del SITE nosuch",
    "link del SITE nosuch",
    "link pause SITE nosuch",
    "link resume SITE nosuch",
    "route change SITE nosuch --credit 1",
    "route del SITE nosuch",
    "route del SITE nosuch amq.topic k",
    "route pause SITE nosuch",
    "route resume SITE nosuch",
    "route status SITE nosuch",
    "route redrive SITE nosuch",
    "queue move SITE nosuch sluice-queue-1",
    "queue del SITE nosuch amq.topic nosuch",
    "queue delete SITE sluice-queue-nosuch",
    "dynamic del SITE nosuch amq.topic",
    "publish SITE nosuch k body",
    "consume SITE nosuch",
    "dlq show nosuch",
    "dlq redrive nosuch",
    "dlq purge nosuch --yes",
    "dlq show federation --id nosuch",
    "dlq redrive federation --id nosuch",
    "dlq purge federation --id nosuch --yes",
    "topology plan nosuch.yaml",
    "topology export nosuch@eu-west-9",
    "pipeline stop nosuch",
    "pipeline logs nosuch",
]


def test_a_command_about_something_that_isnt_there_fails_and_says_so(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in deployed.cloud.environment(deployed.site).items():
        monkeypatch.setenv(name, value)
    for line in NAMES_NOTHING:
        done = CliRunner().invoke(app, line.replace("SITE", deployed.site.region).split())
        assert (done.exit_code, bool(done.stderr.strip())) == (1, True), f"{line}: {done.output}{done.exception!r}"


def test_a_region_without_a_site_has_no_status(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in deployed.cloud.environment(deployed.site).items():
        monkeypatch.setenv(name, value)
    for line in ("status", "split status", "link list .", "dlq list", "pipeline status", "rendezvous status"):
        done = CliRunner().invoke(app, [*line.split(), "--region", "us-west-2"])
        assert done.exit_code == 1, f"{line}: {done.output}{done.exception!r}"
