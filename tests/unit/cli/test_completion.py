"""What a shell offers: names of the site that the line means, in time, and never an error."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sluice.cli import completion
from sluice.cli.completion import complete_from
from sluice.cli.program import app
from sluice.federation.operations import ListBindings
from sluice.operator.federated_sites import use_clients
from sluice.operator.site_names import SiteName
from tests.unit.cli.federation.test_commands import EAST, WEST, Sites
from tests.unit.cli.test_status import FakeSite, site  # noqa: F401 - pytest finds the fixture here


def completed(line: str) -> list[str]:
    """What bash is told for the last word of a line."""
    words = line.split(" ")
    variables = {"_SLUICE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = CliRunner().invoke(app, [], env=variables, prog_name="sluice")
    assert (done.exit_code, done.stderr) == (0, "")
    return [each for each in done.stdout.split("\n") if each]


@pytest.fixture(autouse=True)
def has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have the processors."""
    monkeypatch.setattr(completion, "DEADLINE_S", 60.0)


@pytest.fixture
def sites() -> Iterator[Sites]:
    made = Sites()
    for name, tag in ((EAST, "EAST"), (WEST, "WEST")):
        made.add(name, tag)
    made.run("exchange", "add", WEST, "orders", "topic")
    made.run("binding", "add", WEST, "orders", "sluice-queue-1", "eu.#")
    made.run("binding", "add", WEST, "amq.topic", "stack-orders-1", "us.#")
    made.run("route", "add", WEST, EAST, "amq.topic", "a")
    with use_clients(made.open):
        yield made


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("sluice exch", ["exchange"]),
        ("sluice exchange ", ["add", "del", "list"]),
        ("sluice exchange list --pro", ["--profile"]),
        (f"sluice exchange del {WEST} ord", ["orders"]),
        ("sluice exchange del --region us-west-2 ord", ["orders"]),
        ("sluice exchange del --site us-west-2 ord", ["orders"]),
        (f"sluice exchange del {EAST} ord", []),
        (f"sluice binding add {WEST} amq.t", ["amq.topic"]),
        (f"sluice binding add {WEST} amq.topic ord", ["orders"]),
        (f"sluice binding del {WEST} orders sluice-queue-1 ", ["eu.#"]),
        (f"sluice binding del {WEST} amq.topic sluice-queue-1 ", []),
        (f"sluice link pause {WEST} ", ["EAST"]),
        (f"sluice link del {WEST} ", ["EAST"]),
        (f"sluice peer del {WEST} ", ["EAST"]),
        (f"sluice route pause {WEST} from", ["from-EAST:amq.topic:amq.topic:a"]),
        (f"sluice consume {WEST} sluice", ["sluice-queue-1"]),
        (f"sluice queue delete {WEST} sluice", ["sluice-queue-1"]),
        ("sluice pipeline start s", ["statistics"]),
        ("sluice pipeline start --local s", ["statistics"]),
    ],
)
def test_names_of_the_site_that_the_line_means(sites: Sites, line: str, offers: list[str]) -> None:
    assert completed(line) == offers


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("sluice split status ", ["s-1"]),
        ("sluice split stop s", ["s-1"]),
        ("sluice split tail --queue o", ["orders"]),
        ("sluice dlq show r", ["rendezvous"]),
    ],
)
def test_sessions_and_queues_are_asked_for(site: FakeSite, line: str, offers: list[str]) -> None:  # noqa: F811 - pytest's way
    assert completed(line) == offers


def test_sites_are_those_of_profiles_and_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[profile me]\nregion = eu-west-2\n[profile my]\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_REGION", EAST)
    assert completed("sluice exchange list me") == ["me@eu-west-2"]
    assert EAST in completed("sluice exchange list --site us-")
    assert completed("sluice status --profile m") == ["me", "my"]


@pytest.mark.parametrize("line", ["sluice exchange del us-west-2 ", "sluice exchange del nowhere "])
def test_what_can_not_be_asked_offers_nothing_and_says_nothing(line: str) -> None:
    def refuse(_: SiteName) -> None:
        raise RuntimeError("broken")

    with use_clients(refuse):  # type: ignore[arg-type]  # it is broken
        assert completed(line) == []


def test_who_answers_too_late_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "DEADLINE_S", 0.05)
    never = threading.Event()
    slow = complete_from(lambda _: ["late"] if never.wait() else [])
    assert slow(typer.Context(typer.main.get_command(app)), "") == []
    never.set()


def test_keys_are_those_of_the_exchange_and_the_queue(sites: Sites) -> None:
    completed(f"sluice binding del {WEST} orders sluice-queue-1 ")
    assert sites[WEST].asked[-1] == ListBindings(exchange="orders")


def test_completion_can_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: ("bash", "/bin/bash"))
    shown = CliRunner().invoke(app, ["--show-completion"], prog_name="sluice")
    assert "complete" in shown.stdout or "_SLUICE_COMPLETE" in shown.stdout
