"""Dead letters: looked at, put back, thrown away; what they hold is shown as text, whatever it is."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from sluice.errors import BadRequest
from tests.console.conftest import Looking, RecordedSites

PAGE = "#/dead-letters?queue=federation"
HOSTILE = "<script>document.title='hit'</script><img src=x onerror=alert(1)>\u202eright to left\u0000"


def letter(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"letter-{number}",
        "reason": "UnknownExchange",
        "said": "UnknownExchange: nowhere",
        "source": "arn:aws:sqs:eu-central-1:000000000000:ingress",
        "died_ms": 1795595003979,
        "receives": 1,
        "group": None,
        "attributes": {"user": "alice"},
        "body": f"body {number}",
        "body_characters": 6,
        **more,
    }


def looked(letters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    reasons = [
        {"reason": "UnknownExchange", "letters": len(letters), "oldest_ms": 1, "sources": {"ingress": len(letters)}}
    ]
    return {"looked_at": len(letters), "oldest_ms": 1, "reasons": reasons if letters else [], "letters": letters}


@pytest.fixture
def sites(sites: RecordedSites) -> RecordedSites:
    sites.answers |= {"dead-letters": looked([letter(1), letter(2)]), "redrive": {}, "purge": {}, "stop-move": {}}
    return sites


def asked(sites: RecordedSites, name: str) -> list[Mapping[str, Any]]:
    return [fields for question, _, fields in sites.asked if question == name]


def test_queues_are_listed_and_a_queues_letters_are_looked_at_once(look: Looking, sites: RecordedSites) -> None:
    page = look.at(PAGE)
    expect(page.get_by_role("table", name="Queues of dead letters").get_by_role("row")).to_have_count(5)
    expect(page.locator(".letters > li")).to_have_count(2)
    page.wait_for_timeout(400)  # some readings later
    assert len(asked(sites, "dead-letters")) == 1


def test_no_letter_is_looked_at_before_somebody_asks_for_a_queue(look: Looking, sites: RecordedSites) -> None:
    page = look.at("#/dead-letters")
    page.get_by_role("link", name="federation", exact=True).wait_for()
    assert not sites.asked


def test_a_letter_is_opened_with_its_body_and_attributes(look: Looking) -> None:
    page = look.at(PAGE)
    page.locator("summary").first.click()
    opened = page.locator(".letters details").first
    expect(opened.locator("pre")).to_have_text("body 1")
    expect(opened).to_contain_text("alice")


def test_a_reason_is_asked_for_and_stands_in_the_address(look: Looking, sites: RecordedSites) -> None:
    page = look.at(PAGE)
    page.get_by_role("link", name="UnknownExchange").click()
    expect(page.get_by_role("link", name="UnknownExchange (show all)")).to_be_visible()
    page.locator(".letters > li").first.wait_for()
    assert asked(sites, "dead-letters")[-1]["reasons"] == ["UnknownExchange"]
    assert "reason=UnknownExchange" in page.url


def test_who_may_only_look_has_no_buttons_to_do_anything(look: Looking) -> None:
    page = look.at(PAGE)
    page.locator(".letters > li").first.wait_for()
    assert page.get_by_role("button", name="Redrive").count() == page.get_by_role("button", name="Purge").count() == 0


def test_one_some_and_all_are_put_back(look: Looking, sites: RecordedSites) -> None:
    page = look.at(PAGE, allow_actions=True)
    page.get_by_label("Select letter letter-2").check()
    page.get_by_role("button", name="Redrive 1 selected").click()
    page.get_by_role("button", name="Redrive all").click()
    page.locator("summary").first.click()
    page.get_by_role("button", name="Redrive this").first.click()
    expect(page.locator(".notice")).to_have_count(3)
    assert asked(sites, "redrive") == [
        {"queue": "federation", "ids": ["letter-2"]},
        {"queue": "federation", "reasons": []},
        {"queue": "federation", "ids": ["letter-1"]},
    ]


def test_a_purge_wants_the_queues_name_typed(look: Looking, sites: RecordedSites) -> None:
    page = look.at(PAGE, allow_actions=True)
    page.get_by_role("button", name="Purge all…").click()
    dialog = page.get_by_role("dialog")
    button = dialog.get_by_role("button", name="Purge")
    expect(dialog.get_by_role("textbox")).to_be_focused()
    page.keyboard.type("federatio")
    expect(button).to_be_disabled()
    page.keyboard.type("n")
    page.keyboard.press("Enter")
    expect(page.locator(".notice")).to_have_text("The letters are being deleted.")
    assert asked(sites, "purge") == [{"queue": "federation", "typed": "federation", "reasons": []}]


def test_a_purge_that_is_thought_better_of_throws_nothing_away(look: Looking, sites: RecordedSites) -> None:
    page = look.at(PAGE, allow_actions=True)
    page.get_by_role("button", name="Purge all…").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert not asked(sites, "purge")


def test_what_a_command_would_refuse_is_said_in_its_words(look: Looking, sites: RecordedSites) -> None:
    sites.answers["redrive"] = BadRequest("letters of federation are being moved already: stop that move first")
    page = look.at(PAGE, allow_actions=True)
    page.get_by_role("button", name="Redrive all").click()
    expect(page.locator(".notice.bad")).to_have_text(
        "letters of federation are being moved already: stop that move first"
    )


def test_a_move_is_followed_and_can_be_stopped(look: Looking, sites: RecordedSites) -> None:
    move = {
        "queue": "federation",
        "what": "redrive",
        "began_ms": 1,
        "moved": 30,
        "stays": 2,
        "stay": {},
        "stopped": False,
    }
    sites.documents["dead-letters"]["moves"] = [move | {"ended": False, "error": ""}]
    page = look.at(PAGE, allow_actions=True)
    expect(page.get_by_role("status").filter(has_text="30 redriven")).to_have_text("30 redriven, 2 stay; running…")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".notice")).to_have_text("The move stops after the current batch.")
    assert asked(sites, "stop-move") == [{"queue": "federation"}]


def ended(began_ms: int) -> dict[str, Any]:
    said = {"queue": "federation", "what": "redrive", "moved": 1, "stays": 0, "stay": {}, "stopped": False, "error": ""}
    return {**said, "began_ms": began_ms, "ended": True}


def test_a_look_that_failed_isnt_repeated_until_something_has_moved(look: Looking, sites: RecordedSites) -> None:
    sites.answers["dead-letters"] = BadRequest("not now")
    page = look.at(PAGE)
    expect(page.get_by_role("alert")).to_have_text("not now")
    page.wait_for_timeout(400)  # some readings later
    assert len(asked(sites, "dead-letters")) == 1
    sites.answers["dead-letters"] = looked([letter(1)])
    sites.documents["dead-letters"]["moves"] = [ended(1)]
    expect(page.locator(".letters > li")).to_have_count(1)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_what_is_chosen_and_open_stays_so_when_letters_are_looked_at_again(look: Looking, sites: RecordedSites) -> None:
    sites.answers["dead-letters"] = looked([letter(1, body_characters=9), letter(2), letter(3)])
    sites.answers["dead-letter"] = letter(1, body="all of it")
    page = look.at(PAGE, allow_actions=True)
    page.locator("summary").first.click()
    page.get_by_role("button", name="Show all 9 bytes").click()
    for number in (1, 2):
        page.get_by_label(f"Select letter letter-{number}").check()
    sites.answers["dead-letters"] = looked([letter(3), letter(1, body_characters=9)])
    sites.documents["dead-letters"]["moves"] = [ended(1)]
    expect(page.locator(".letters > li")).to_have_count(2)
    expect(page.get_by_label("Select letter letter-1")).to_be_checked()
    expect(page.locator("pre").filter(has_text="all of it")).to_be_visible()
    page.get_by_role("button", name="Redrive 1 selected").click()
    expect(page.locator(".notice")).to_have_count(1)
    assert asked(sites, "redrive") == [{"queue": "federation", "ids": ["letter-1"]}]


def test_hostile_bodies_names_and_reasons_are_text(look: Looking, sites: RecordedSites) -> None:
    sites.answers["dead-letters"] = looked(
        [letter(1, body=HOSTILE, said=HOSTILE, source=HOSTILE, attributes={HOSTILE: HOSTILE})]
    )
    page = look.at(PAGE)
    page.locator("summary").click()
    expect(page.locator("pre")).to_contain_text("<script>document.title='hit'</script>")
    assert page.locator("main script, main img").count() == 0
    assert page.title() == "Dead letters · Sluice"


def shown_whole(look: Looking, sites: RecordedSites, body: str) -> Page:
    """The page with a letter of a mebibyte, all of which was asked for."""
    sites.answers["dead-letters"] = looked([letter(1, body=body[:500], body_characters=len(body))])
    sites.answers["dead-letter"] = letter(1, body=body)
    page = look.at(PAGE)
    page.locator("summary").click()
    page.get_by_role("button", name="Show all 1 MiB").click()
    expect(page.get_by_role("button", name="Show all")).to_have_count(0)
    return page


def test_a_body_of_a_mebibyte_is_shown_whole_when_asked_for(look: Looking, sites: RecordedSites) -> None:
    body = ("<b>" * 400_000)[:1_048_576]
    page = shown_whole(look, sites, body)
    assert page.locator("pre").evaluate("shown => shown.textContent.length") == len(body)
    assert page.locator("pre b").count() == 0


ARABIC = "\u0631\u0633\u0627\u0644\u0629"
# Where the characters of some text stand, of an element that has it: left and right edges.
PLACES = """(element, text) => {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const at = node.data.indexOf(text);
    if (at < 0) continue;
    return [...text].map((_, place) => {
      const range = document.createRange();
      range.setStart(node, at + place);
      range.setEnd(node, at + place + 1);
      const { left, right } = range.getBoundingClientRect();
      return [left, right];
    });
  }
}"""


def places(element: Locator, text: str) -> list[list[float]]:
    found: list[list[float]] = element.evaluate(PLACES, text)
    return found


def test_a_letter_that_is_written_from_right_to_left_stands_so_and_turns_nothing_else(
    look: Looking, sites: RecordedSites
) -> None:
    body = f"{ARABIC}\n\u202ebackwards\nforwards"
    sites.answers["dead-letters"] = looked(
        [letter(1, body=body, said="\u202edias", attributes={"user": "\u202eresu", "shop": ARABIC})]
    )
    page = look.at(PAGE)
    summary, shown = page.locator("summary"), page.locator("pre")
    summary.click()
    assert shown.evaluate("shown => shown.textContent") == body
    first, *_, last = places(shown, ARABIC)
    assert first[0] > last[0]
    assert first[1] > shown.evaluate("shown => shown.getBoundingClientRect().right") - 40  # it begins at the right
    backwards, forwards = places(shown, "backwards"), places(shown, "forwards")
    assert backwards == sorted(backwards, reverse=True)
    assert forwards == sorted(forwards)
    # What stands beside is as it would be beside another one.
    assert max(right for _, right in places(summary, "dias")) <= places(summary, "ago")[0][0]
    assert places(summary, "ago") == sorted(places(summary, "ago"))


def test_a_large_letter_from_right_to_left_is_shown_whole_while_readings_come(
    look: Looking, sites: RecordedSites
) -> None:
    body = (f"{ARABIC} \u202e{ARABIC}\u202c\n" * 100_000)[:1_048_576]
    page = shown_whole(look, sites, body)
    for visible in (7, 8):
        sites.documents["dead-letters"]["queues"][2] |= {"visible": visible, "in_flight": 0}
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="federation", exact=True))
        expect(row.get_by_role("cell").nth(1)).to_have_text(str(visible))
    assert page.locator("pre").evaluate("shown => shown.textContent") == body


def test_ten_thousand_letters_are_told_and_drawn_by_the_fifty(look: Looking, sites: RecordedSites) -> None:
    sites.documents["dead-letters"]["queues"][2] |= {"visible": 10_000, "in_flight": 0}
    sites.answers["dead-letters"] = looked([letter(number) for number in range(1_000)])
    page = look.at(PAGE)
    expect(page.get_by_role("status").filter(has_text="letters were read")).to_have_text(
        "1,000 of about 10,000 letters were read."
    )
    expect(page.locator(".letters > li")).to_have_count(50)
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".letters > li").first).to_have_attribute("data-key", "letter-50")
    page.get_by_role("button", name="Read up to 10,000").click()
    expect(page.get_by_role("button", name="Look again")).to_be_enabled()
    assert asked(sites, "dead-letters")[-1]["looked_at"] == 10_000
