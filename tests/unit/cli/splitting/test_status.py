"""`sluice split status`, `stop` and `run` against a fake control function."""

import json

import pytest
from typer.testing import CliRunner, Result

from sluice.cli.program import app
from tests.unit.cli import test_status
from tests.unit.cli.test_status import SESSION, SPLIT, FakeSite, site  # noqa: F401 - pytest finds the fixture here


def split(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["split", *arguments])


def test_what_does_not_rest_is_shown_with_what_it_waits_for(site: FakeSite) -> None:  # noqa: F811 - pytest's way
    shown = split("status").stdout
    for text in (
        "orders (steal): user =~ ^me$",
        "s-0",
        "bills",
        "restoring",
        "its consumers to read bills",
        "sluice-tmp-main",
        "AccessDenied: no",
    ):
        assert text in shown
    assert json.loads(split("status", "--json").stdout)["splits"] == [SPLIT]


def test_a_session_that_is_missing_is_no_success(site: FakeSite) -> None:  # noqa: F811 - pytest's way
    missing = split("status", "gone")
    assert (missing.exit_code, "Ended" in missing.stdout, "Unused" in missing.stderr) == (1, True, True)


def test_sessions_are_stopped_by_their_key_or_name_too(
    site: FakeSite,  # noqa: F811 - pytest's way
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [{**SESSION, "session_id": "s-2", "key": "alice"}, {**SESSION, "session_id": "s-3", "name": "alice"}]
    monkeypatch.setattr(test_status, "SESSIONS", [SESSION, *others])
    assert split("stop", "alice", "s-1", "s-3", "unknown").exit_code == 0
    assert site.stopped == ["s-2", "s-3", "s-1", "unknown"]


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (["--filter", "orders:a=b", "--", "no-such-program"], "no-such-program"),
        (["--filter", "orders:a=b", "--queue", "A=bills", "--", "true"], "the session has no queue 'bills'"),
        (["--filter", "orders:a=b", "--queue", "1=orders", "--", "true"], "'1' can't be a variable"),
    ],
)
def test_what_a_program_needs_is_checked_before_a_session_starts(
    site: FakeSite,  # noqa: F811 - pytest's way
    options: list[str],
    refusal: str,
) -> None:
    done = split("run", *options)
    assert (done.exit_code, refusal in done.stderr) == (1, True), done.output
    assert "start" not in site.operations
