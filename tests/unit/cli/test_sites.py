"""Which site a command is about: what its options and its arguments say, and where these contradict each other."""

from pathlib import Path
from typing import Annotated

import pytest
import typer
from moto import mock_aws
from typer.testing import CliRunner, Result

from sluice.cli.program import app
from sluice.cli.sites import DestText, SiteCommands, SiteText, SrcText, add_local_value
from sluice.local.cloud import Cloud, CloudFailed
from sluice.local.sites import Site
from sluice.operator.site_names import (
    BadSiteName,
    SiteName,
    SiteOptions,
    WrongAccount,
    find_default_region,
    get_site_options,
    is_site_name,
    use_site_options,
)

EU, US = "eu-central-1", "us-east-1"
ZERO, ONE = "000000000000", "111111111111"
LOCAL_EU, LOCAL_US, LOCAL_DEV = Site(ZERO, EU), Site(ONE, US), Site(ZERO, EU, "dev")


def cloud(*sites: Site) -> Cloud:
    return Cloud(pid=1, endpoint="http://127.0.0.1:1", secret="s", folder=Path(), sites=sites)


RUNNING = cloud(LOCAL_EU, LOCAL_US, LOCAL_DEV)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = "[default]\nregion = eu-west-3\n[profile me]\nregion = eu-west-2\n[profile none]\nsso_session = x\n"
    (tmp_path / "config").write_text(config)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "SLUICE_STAGE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


# Names


@pytest.mark.parametrize(
    ("options", "text", "meant"),
    [
        ({}, EU, SiteName(EU)),
        ({}, f"me@{EU}:dev", SiteName(EU, profile="me", stage="dev")),
        ({}, f"{ONE}/{US}", SiteName(US, local_account=ONE)),
        ({}, ".", SiteName("eu-west-3")),
        ({}, ":dev", SiteName("eu-west-3", stage="dev")),
        ({"region": EU, "profile": "you"}, ".", SiteName(EU, profile="you")),
        ({"profile": "me"}, ".", SiteName("eu-west-2", profile="me")),
        ({"profile": "none"}, ".", SiteName(None, profile="none")),
        ({"profile": "you", "stage": "dev"}, EU, SiteName(EU, profile="you", stage="dev")),
        ({"profile": "you", "stage": "dev"}, f"me@{EU}:test", SiteName(EU, profile="me", stage="test")),
        ({"site": f"me@{US}"}, ".", SiteName(US, profile="me")),
        ({"local": "first"}, ".", SiteName(EU, local_account=ZERO)),
        ({"local": "first", "stage": "dev"}, ".", SiteName(EU, local_account=ZERO, stage="dev")),
        ({"local": "first", "region": US}, ".", SiteName(US, local_account=ONE)),
        ({"local": "first"}, US, SiteName(US, local_account=ONE)),
        ({"local": "first"}, EU, SiteName(EU, local_account=ZERO)),
        ({"local": "first"}, "eu-west-1", SiteName("eu-west-1", local_account=ZERO)),
        ({"local": "first", "site": ":dev"}, ".", SiteName(EU, local_account=ZERO, stage="dev")),
        ({"local": f"{ONE}/{US}"}, ".", SiteName(US, local_account=ONE)),
        ({"local": f"{ONE}/{US}", "stage": "dev"}, ".", SiteName(US, local_account=ONE, stage="dev")),
        ({"local": f"{ONE}/{US}"}, US, SiteName(US, local_account=ONE)),
        # As sites call themselves, unless federation.tag says otherwise.
        ({}, f"{US}-{ONE}", SiteName(US, local_account=ONE)),
        ({}, f"{US}-222222222222", SiteName(US, account="222222222222")),
        ({}, f"dev-{ZERO}eucentral1", SiteName(EU, local_account=ZERO, stage="dev")),
        ({}, "dev-222222222222usgoveast1", SiteName("us-gov-east-1", account="222222222222", stage="dev")),
        ({}, "dev-222222222222apnortheast3", SiteName("ap-northeast-3", account="222222222222", stage="dev")),
        ({}, "dev-222222222222cacentral1", SiteName("ca-central-1", account="222222222222", stage="dev")),
    ],
)
def test_a_name_says_a_site_and_options_what_it_leaves_open(
    options: dict[str, str], text: str, meant: SiteName
) -> None:
    assert SiteOptions(**options).resolve(text, find_running_cloud=lambda: RUNNING) == meant


def test_a_region_may_be_several_sites_of_the_embedded_cloud() -> None:
    running = cloud(LOCAL_EU, Site(ONE, EU))
    with pytest.raises(BadSiteName, match=f"several sites of the embedded cloud: say which of {LOCAL_EU}, {ONE}/{EU}"):
        SiteOptions(local="first").resolve(EU, find_running_cloud=lambda: running)


@pytest.mark.parametrize(
    ("running", "options", "error"),
    [
        (None, {}, "the embedded cloud isn.t running"),
        (cloud(), {}, "nothing is deployed to the embedded cloud"),
        (RUNNING, {"stage": "none"}, "no site of stage none is deployed to the embedded cloud"),
    ],
)
def test_where_there_is_no_such_site_it_says_how_there_is(
    running: Cloud | None, options: dict[str, str], error: str
) -> None:
    with pytest.raises(CloudFailed, match=error):
        SiteOptions(local="first", **options).resolve(find_running_cloud=lambda: running)


@pytest.mark.parametrize("text", ["", "events", "me@", "@eu-west-1", f"{EU}:Dev", f"{EU}:", "EAST", ":"])
def test_what_is_no_site_is_refused(text: str) -> None:
    assert not is_site_name(text)
    with pytest.raises(BadSiteName, match="is no site"):
        SiteOptions().resolve(text)


@pytest.mark.parametrize(
    "name", [SiteName(EU), SiteName(EU, profile="me", stage="dev"), SiteName(EU, local_account=ZERO)]
)
def test_a_site_is_called_by_what_names_it(name: SiteName) -> None:
    assert SiteName.parse(str(name)) == name


def test_names_are_completed_by_the_options_of_the_command_that_runs() -> None:
    with use_site_options(SiteOptions(profile="me")):
        assert SiteName.parse(US) == SiteName(US, profile="me")
    assert SiteName.parse(US) == SiteName(US)


def test_regions_are_the_environments_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[old]\nregion = sa-east-1\naws_secret_access_key = 50%\n")
    assert [find_default_region(name) for name in (None, "me", "none", "old", "unknown")] == [
        "eu-west-3",
        "eu-west-2",
        None,
        "sa-east-1",
        None,
    ]
    monkeypatch.setenv("AWS_PROFILE", "me")
    assert find_default_region(None) == "eu-west-2"
    monkeypatch.setenv("AWS_DEFAULT_REGION", US)
    assert find_default_region("me") == US
    (tmp_path / "config").write_text("no configuration")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert find_default_region("me") is None


def test_credentials_of_another_account_than_the_name_says_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        assert SiteName(EU, account="123456789012").connect().region == EU
        with pytest.raises(WrongAccount, match="of account 123456789012, not 222222222222: pass another --profile"):
            SiteName(EU, account="222222222222").connect()


# Options and arguments


def program() -> SiteCommands:
    made = SiteCommands()

    @made.command()
    def plain(*, site: SiteOptions) -> None:
        typer.echo(site.resolve(find_running_cloud=lambda: RUNNING))

    @made.command()
    def one(site: SiteText, name: str, key: Annotated[str, typer.Argument()] = "") -> None:
        typer.echo(f"{shown(site)} {name} {key}".strip())

    @made.command()
    def two(dest: DestText, src: SrcText, name: str) -> None:
        typer.echo(f"{shown(dest)} {src if not is_site_name(src) else shown(src)} {name}")

    @made.command()
    def many(sites: Annotated[list[str], typer.Argument(metavar="SITE")]) -> None:
        typer.echo(" ".join(map(shown, sites)))

    return made


def shown(text: str) -> str:
    return str(get_site_options().resolve(text, find_running_cloud=lambda: RUNNING))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program(), arguments)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ("plain", "eu-west-3"),
        ("plain --site me@us-east-1:dev", "me@us-east-1:dev"),
        ("plain --local", f"{ZERO}/{EU}"),
        (f"plain --local {ONE}/{US}", f"{ONE}/{US}"),
        (f"plain --local={ONE}/{US}", f"{ONE}/{US}"),
        (f"plain --local --region {US}", f"{ONE}/{US}"),
        (f"plain --site {US} --local", f"{ONE}/{US}"),
        (f"plain --site {US} --region {US} --profile me", f"me@{US}"),
        ("one us-east-1 events", "us-east-1 events"),
        ("one us-east-1 events key", "us-east-1 events key"),
        ("one events", "eu-west-3 events"),
        ("one . events key", "eu-west-3 events key"),
        ("one --local events", f"{ZERO}/{EU} events"),
        ("one --local events key", f"{ZERO}/{EU} events key"),
        ("one events key --local", f"{ZERO}/{EU} events key"),
        (f"one events --site {US}", "us-east-1 events"),
        (f"one events {US} --site eu-west-1", f"eu-west-1 events {US}"),
        ("one us-east-1 events --local", f"{ONE}/{US} events"),
        ("one us-east-1 events --profile me", "me@us-east-1 events"),
        (f"one {US}-{ONE} events", f"{ONE}/{US} events"),
        ("two us-east-1 eu-central-1 events --local", f"{ONE}/{US} {ZERO}/{EU} events"),
        ("two me@us-east-1 eu-central-1 events --profile you", "me@us-east-1 you@eu-central-1 events"),
        ("two us-east-1:dev eu-central-1 events --stage test", "us-east-1:dev eu-central-1:test events"),
        ("two EAST events --local", f"{ZERO}/{EU} EAST events"),
        ("two EAST events", "eu-west-3 EAST events"),
        (f"two us-east-1 events --site {EU}", f"{EU} us-east-1 events"),
        ("many", "eu-west-3"),
        ("many --local", f"{ZERO}/{EU}"),
        ("many us-east-1 eu-central-1 --local", f"{ONE}/{US} {ZERO}/{EU}"),
    ],
)
def test_a_site_is_the_same_whether_an_option_or_an_argument_says_it(arguments: str, output: str) -> None:
    done = run(*arguments.split())
    assert done.output == f"{output}\n"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("plain --local --profile me", ("--local", "--profile me")),
        (f"plain --local {ONE}/{US} --region {EU}", (f"--local {ONE}/{US}", f"--region {EU}")),
        (f"plain --local {ONE}/{US}:dev --stage test", (f"--local {ONE}/{US}:dev", "--stage test")),
        (f"plain --site {US} --region {EU}", (US, f"--region {EU}")),
        (f"plain --site me@{US} --profile you", (f"me@{US}", "--profile you")),
        (f"plain --site me@{US} --local", (f"me@{US}", "--local")),
        (f"plain --site {ZERO}/{EU} --local {ONE}/{US}", (f"{ZERO}/{EU}", f"--local {ONE}/{US}")),
        (f"plain --site {ZERO}/{EU} --profile me", (f"{ZERO}/{EU}", "--profile me")),
        (f"plain --site {EU}:dev --stage test", (f"{EU}:dev", "--stage test")),
        (f"one {US} events --region {EU}", (US, f"--region {EU}")),
        (f"one events --site {US} --region {EU}", (US, f"--region {EU}")),
        (f"two {EU} events --site me@{US} --local", (f"me@{US}", "--local")),
        (f"one me@{US} events --profile you", (f"me@{US}", "--profile you")),
        (f"one me@{US} events --local", (f"me@{US}", "--local")),
        (f"one {US} events --site {EU}", (US, f"--site {EU}")),
        (f"two {US} {EU} events --site eu-west-1", (US, "--site eu-west-1")),
        (f"two {US} {EU} events --local {ONE}/{US}", (EU, f"--local {ONE}/{US}")),
        (f"two me@{US} me@{EU} events --profile you", (f"me@{US}", "--profile you")),
        (f"two {US} {EU} events --region eu-west-1", (US, "--region eu-west-1")),
    ],
)
def test_what_contradicts_is_refused_by_both_names(arguments: str, names: tuple[str, str]) -> None:
    refused = run(*arguments.split())
    assert refused.exit_code == 2
    assert all(name in " ".join(refused.stderr.split()) for name in names)
    assert "one of them" in refused.stderr


@pytest.mark.parametrize("arguments", ["one events key", "one eucentral1 events key", "plain --site nowhere"])
def test_what_is_no_site_is_not_taken_for_the_one_of_the_environment(arguments: str) -> None:
    refused = run(*arguments.split())
    assert isinstance(refused.exception, BadSiteName)


def test_a_stage_of_the_environment_contradicts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_STAGE", "test")
    assert run("plain", "--site", f"{EU}:dev").output == f"{EU}:dev\n"
    assert run("plain", "--site", EU).output == f"{EU}:test\n"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (["run-local", "--local", "land"], ["run-local", "--local", "first", "land"]),
        (["--local", f"{ZERO}/{EU}:dev"], ["--local", f"{ZERO}/{EU}:dev"]),
        (["--local", "eu-central-1"], ["--local", "first", "eu-central-1"]),
        (["--local", f"{ZERO}/nowhere"], ["--local", f"{ZERO}/nowhere"]),
        (["--", "--local"], ["--", "--local"]),
    ],
)
def test_local_takes_only_what_looks_like_a_site_of_the_embedded_cloud(said: list[str], meant: list[str]) -> None:
    assert add_local_value(said) == meant


def test_a_site_of_the_embedded_cloud_that_is_none_is_said() -> None:
    refused = run("plain", "--local", f"{ZERO}/nowhere")
    assert refused.exit_code != 0
    assert "is not a site: twelve digits" in str(refused.exception)


def test_of_run_local_the_job_is_not_the_site() -> None:
    done = CliRunner().invoke(app, ["pipeline", "run-local", "--local", "nojob", "--spark-python", "/nowhere"])
    assert "/nowhere is not an executable Python" in done.stderr


@pytest.mark.parametrize("command", ["up", "env"])
@pytest.mark.parametrize("option", [f"--site {EU}", f"--region {EU}", f"--local {ZERO}/{EU}"])
def test_a_site_of_the_embedded_cloud_is_an_argument_or_an_option(command: str, option: str) -> None:
    refused = CliRunner().invoke(app, ["local", command, f"{ONE}/{US}", *option.split()])
    assert refused.exit_code == 2
    said = " ".join(refused.stderr.split())
    assert f"{ONE}/{US} and {option}" in said
    assert "one of them" in said
