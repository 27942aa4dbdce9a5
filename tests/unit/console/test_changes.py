"""What changed between two statuses, in words."""

from typing import Any

from sluice.console.changes import changes


def status(**parts: Any) -> dict[str, Any]:
    names = ("rendezvous", "splitting", "federation", "pipeline", "dead_letters")
    return dict.fromkeys(names) | {"failed": {}, "absent": {}} | parts


def what(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each.part, each.what) for each in changes(before, after, at_ms=1)]


def session(session_id: str, state: str = "Ready") -> dict[str, Any]:
    return {"session_id": session_id, "key": session_id, "owner": "me", "status": state}


def federation(*, state: str = "Operational", bindings: int = 1, **named: Any) -> dict[str, Any]:
    found = {"exchanges": [{"name": "events"}], "links": [{"name": "east", "state": state}], "routes": []}
    return {**found, "bindings": bindings, **named}


def test_nothing_changed_is_nothing() -> None:
    assert not what(status(federation=federation()), status(federation=federation()))


def test_sessions_begin_change_and_end() -> None:
    before = status(splitting={"sessions": [session("a"), session("b", "Starting")]})
    after = status(splitting={"sessions": [session("b"), session("c")]})
    assert what(before, after) == [
        ("splitting", "session b of me is Ready"),
        ("splitting", "session c of me began"),
        ("splitting", "session a of me ended"),
    ]


def test_links_routes_exchanges_and_bindings_are_told() -> None:
    before = status(federation=federation())
    after = status(federation=federation(state="Paused", bindings=2, routes=[{"name": "r", "state": "Waiting"}]))
    assert [text for _, text in what(before, after)] == [
        "link east is Paused",
        "route r is new",
        "2 bindings, before 1",
    ]


def test_dead_letters_come_and_go_and_what_isnt_known_is_no_change() -> None:
    def held(visible: int | None) -> dict[str, Any]:
        in_flight = None if visible is None else 0
        return status(dead_letters={"dead letters of splitting": {"visible": visible, "in_flight": in_flight}})

    assert what(held(1), held(3)) == [("dead_letters", "2 more dead letters of splitting")]
    assert what(held(3), held(0)) == [("dead_letters", "3 fewer dead letters of splitting")]
    assert not what(held(None), held(7))


def test_a_part_that_cant_be_asked_any_more_is_told_and_that_it_can_again() -> None:
    fails = status(failed={"splitting": "no answer in 15 s"})
    assert what(status(), fails) == [("splitting", "can't be asked: no answer in 15 s")]
    assert what(fails, status()) == [("splitting", "answers again")]


def test_runs_are_told_by_their_states() -> None:
    before = status(pipeline={"wanted": "stopped", "runs": []})
    after = status(pipeline={"wanted": "running", "runs": [{"run": "1", "job": "land", "state": "RUNNING"}]})
    assert [text for _, text in what(before, after)] == ["job land should be running", "run of job land is RUNNING"]
