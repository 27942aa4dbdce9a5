"""What programs get of a connection: they act as it does, where it does, whatever the caller is at.

AWS is moto's; the programs are real ones, with their own boto3.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import boto3
import pytest
from moto import mock_aws
from typer.testing import CliRunner

from sluice.aws.connections import (
    Connection,
    NoConnection,
    build_environment,
    build_program_variables,
    connect_environment,
    connect_user,
    remove_aws_variables,
)
from sluice.cli.program import app
from tests.unit.cli.pipeline.test_commands import FakeAws, serving

REGION = "eu-central-1"
# Of the caller's: each would lead boto3 to another account, another region or another place.
ELSEWHERE = {
    "AWS_PROFILE": "production",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ENDPOINT_URL_SQS": "http://127.0.0.1:2",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true",
    "AWS_SESSION_TOKEN": "theirs",
    "AWS_ACCESS_KEY_ID": "theirs",
    "AWS_REGION": "us-west-2",
    "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/theirs",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:3",
}
PROGRAM = """
import boto3
sqs = boto3.client("sqs")
keys = boto3.Session().get_credentials().get_frozen_credentials()
print(sqs.meta.endpoint_url, sqs.meta.region_name, keys.access_key, keys.token)
"""


@pytest.fixture(autouse=True)
def caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """With a profile that has keys, a region and an endpoint of its own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(
        "[profile production]\nregion = us-west-2\naws_access_key_id = prod\naws_secret_access_key = prod\n"
        "[profile cloud]\nregion = eu-west-3\nendpoint_url = http://127.0.0.1:4\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def of_program(environment: Mapping[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=dict(environment), capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def local(endpoint: str = "http://127.0.0.1:9") -> Connection:
    keys = {"AWS_ACCESS_KEY_ID": "000000000000", "AWS_SECRET_ACCESS_KEY": "test"}
    return connect_environment({**keys, "AWS_REGION": REGION, "AWS_ENDPOINT_URL": endpoint}, stage="dev")


@pytest.mark.parametrize("profile", ["production", "gone"])
def test_a_program_reaches_the_embedded_cloud_whatever_the_caller_is_at(
    caller: pytest.MonkeyPatch, profile: str
) -> None:
    for name, value in {**ELSEWHERE, "AWS_PROFILE": profile}.items():
        caller.setenv(name, value)
    led = {**remove_aws_variables(os.environ), **build_program_variables(local())}
    assert of_program(led) == ["http://127.0.0.1:9", REGION, "000000000000", "None"]
    assert led["SLUICE_STAGE"] == "dev"
    assert of_program(build_environment(local(), os.environ)) == ["http://127.0.0.1:9", REGION, "000000000000", "None"]


def test_how_programs_retry_and_whom_they_trust_stays_the_callers() -> None:
    kept = {"AWS_RETRY_MODE": "adaptive", "AWS_CA_BUNDLE": "/ca.pem", "AWS_LAMBDA_LOG_LEVEL": "x", "PATH": "/bin"}
    assert remove_aws_variables({**ELSEWHERE, **kept}) == kept


@mock_aws
def test_for_keys_that_stay_valid_a_program_gets_a_session_token(caller: pytest.MonkeyPatch) -> None:
    caller.setenv("AWS_PROFILE", "production")
    led = build_program_variables(connect_user(region=REGION))
    assert led["AWS_SESSION_TOKEN"]
    assert led["AWS_ACCESS_KEY_ID"] != "prod"
    assert led["AWS_SECRET_ACCESS_KEY"] != "prod"
    assert "AWS_PROFILE" not in led
    [_, region, key, token] = of_program({**remove_aws_variables(os.environ), **led})
    assert (region, key, token) == (REGION, led["AWS_ACCESS_KEY_ID"], led["AWS_SESSION_TOKEN"])


@mock_aws
def test_credentials_that_end_are_handed_on_as_they_are() -> None:
    role = boto3.session.Session("id", "secret", "token", region_name=REGION)
    led = build_program_variables(Connection(role))
    assert (led["AWS_ACCESS_KEY_ID"], led["AWS_SESSION_TOKEN"]) == ("id", "token")


def test_where_sts_gives_no_token_no_program_gets_the_keys_themselves(caller: pytest.MonkeyPatch) -> None:
    caller.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    caller.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(NoConnection, match=r"STS gives no session token.*they don't expire.*aws sso login"):
        build_program_variables(connect_user(profile="production", region=REGION))


@mock_aws
def test_a_program_follows_the_endpoint_of_a_service_that_the_connection_follows(caller: pytest.MonkeyPatch) -> None:
    caller.setenv("AWS_ENDPOINT_URL_SQS", "http://127.0.0.1:1")
    led = build_program_variables(connect_user(profile="production", region=REGION))
    assert led["AWS_ENDPOINT_URL_SQS"] == "http://127.0.0.1:1"


def test_a_profiles_own_endpoint_is_followed_by_what_it_starts() -> None:
    assert connect_user(profile="cloud").endpoint_url == "http://127.0.0.1:4"
    assert connect_user(profile="production").endpoint_url is None


def test_a_program_of_ours_has_the_profile_that_was_said_and_no_other_keys(caller: pytest.MonkeyPatch) -> None:
    caller.setenv("AWS_ACCESS_KEY_ID", "theirs")
    caller.setenv("AWS_SECRET_ACCESS_KEY", "theirs")
    led = build_environment(connect_user(profile="production", region=REGION), os.environ)
    assert of_program(led)[1:3] == [REGION, "prod"]


def test_without_credentials_nothing_is_started() -> None:
    with pytest.raises(NoConnection, match="no AWS credentials"):
        build_program_variables(connect_user(region=REGION))


def test_a_job_that_runs_here_reaches_the_site_alone(
    caller: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\necho "$AWS_ENDPOINT_URL $AWS_ACCESS_KEY_ID $AWS_PROFILE $AWS_CONFIG_FILE"\n')
    script.chmod(0o755)
    with serving(FakeAws()) as endpoint:
        caller.setenv("AWS_ENDPOINT_URL", endpoint)
        caller.setenv("AWS_PROFILE", "production")
        options = ["--queue-url", "https://q", "--spark-python", str(script), "--folder", str(tmp_path)]
        done = CliRunner().invoke(app, ["pipeline", "run-local", *options])
    assert done.exit_code == 0, done.output
    assert capfd.readouterr().out.split() == [endpoint, "prod", os.devnull]
