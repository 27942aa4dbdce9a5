"""The console on a deployed site, in a browser: its numbers are the commands', its actions do what commands do."""

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Locator, Page, expect

from sluice.aws.connections import Connection, connect_environment
from sluice.aws.deployment import read_stack_output
from sluice.aws.federation.publisher import Publisher, PublishRequest
from sluice.console.requests import Topic
from sluice.console.sites import CALLS_PER_ROUND, WatchedSite
from sluice.console.watching import ACTIONS, QUESTIONS, READERS, WatchedSites
from sluice.local.cloud import start_cloud
from sluice.local.sites import DEFAULT_SITE
from sluice.operator.site_names import SiteName
from sluice.operator.site_status import SiteClient, read_site
from sluice.splitting.operations import ShowSplitting
from tests.browser import chromium, open_page, serving
from tests.deployed import Deployed
from tests.e2e.sessions import Splitting, by_attribute, url_of
from tests.waiting import wait_until

T = TypeVar("T")
WITHIN_S = 120
WITHIN_MS = WITHIN_S * 1000
ROUND_S = 1.1  # longer than what was asked is taken for now
REFRESHES = 4
ARABIC = "\u0631\u0633\u0627\u0644\u0629"
LIMITED: Any = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": ["cloudformation:*", "lambda:*", "sqs:*", "dynamodb:*"], "Resource": "*"},
        {"Effect": "Deny", "Action": ["cloudwatch:*"], "Resource": "*"},
    ],
}


def watching(connection: Connection, *, landed: Path) -> WatchedSites:
    """One site. The folder is none in which a cloud of the user's has landed."""
    name = SiteName(connection.region, local_account=DEFAULT_SITE.account)
    sites = [WatchedSite(name, lambda _: connection, landed)]
    return WatchedSites(sites=sites, readers=READERS, questions=QUESTIONS, actions=ACTIONS)


@pytest.fixture
def watched(deployed: Deployed, tmp_path: Path) -> WatchedSites:
    return watching(connect_environment(deployed.cloud.environment(deployed.site)), landed=tmp_path)


@pytest.fixture
def page(watched: WatchedSites) -> Iterator[Page]:
    """One that may do something. The browser ends with the test: beside it others couldn't run event loops."""
    with (
        chromium() as browser,
        serving(watched, allow_actions=True, every_s=1.0) as served,
        open_page(browser) as opened,
    ):
        opened.goto(served.address)
        opened.set_default_timeout(WITHIN_MS)
        expect.set_options(timeout=WITHIN_MS)
        yield opened


def until(found: Callable[[], T], is_right: Callable[[T], bool]) -> T:
    """What is found, once it is right."""
    return wait_until(found, is_right, within_s=WITHIN_S)


def overview(watched: WatchedSites) -> Any:
    return json.loads(json.dumps(watched.read(Topic(reading="overview")), default=str))


def are_counted(found: Any) -> bool:
    counters = found["counters"]
    parts = ("splitting", "federation", "rendezvous")
    return all(counters.get(part, {}).get("in") is not None for part in parts)  # a part that is read late is absent


def test_the_overview_counts_what_goes_through_a_part(deployed: Deployed, watched: WatchedSites) -> None:
    splitting = Splitting(deployed)
    before = until(lambda: overview(watched), are_counted)["counters"]
    with splitting.sessions({"standard": by_attribute("client", "^a$")}) as (session,):
        splitting.send("standard", ["a1", "b2", "a3", "c4"], lambda body: {"client": body[0]})
        assert len(splitting.bodies(url_of(session, "standard"), 2)) == 2
        assert len(splitting.bodies(splitting.main("standard"), 2)) == 2
    Publisher(read_stack_output(deployed.connection, "SluiceFederation", "IngressUrl"), deployed.sqs).publish_all(
        [PublishRequest(exchange="amq.topic", key="to.nobody", body="hello") for _ in range(3)]
    )

    def gone_through(found: Any) -> bool:
        counters = found["counters"]
        return bool(
            counters["splitting"]["in"] >= before["splitting"]["in"] + 4
            and counters["splitting"]["to_sessions"] >= before["splitting"]["to_sessions"] + 2
            and counters["splitting"]["to_main"] >= before["splitting"]["to_main"] + 2
            and counters["federation"]["in"] >= before["federation"]["in"] + 3
        )

    found = until(lambda: overview(watched), gone_through)
    assert gone_through(found), (before, found["counters"])


def test_the_page_says_what_the_command_says(deployed: Deployed, watched: WatchedSites, page: Page) -> None:
    """Queues are looked at by turns, and other suites' rest is in them: both say the same once all is quiet."""
    card = page.locator("[data-part=splitting]")

    def numbers() -> tuple[str, str]:
        report = read_site(SiteClient(deployed.connection, is_local=True))
        if "splitting" in report.failed:  # a busy machine may not read it in time
            return report.failed["splitting"], ""
        status = json.loads(json.dumps(report.document, default=str))
        waiting = sum(queue["source"]["visible"] for queue in status["splitting"]["queues"])
        return f"{waiting:,}", card.locator("[data-stat=waiting] dd").inner_text()

    card.locator("dl").wait_for()
    said, shown = until(numbers, lambda pair: pair[0] == pair[1])
    assert said == shown
    expect(card.locator("[data-fact=queues]")).to_have_text(
        f"queues {len(Splitting(deployed).client.ask(ShowSplitting()).queues)}"
    )


@pytest.fixture(scope="module")
def calls_made(deployed: Deployed, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """How many calls each refresh made, by reading: each is read of a site that knows nothing of the others."""
    environment = deployed.cloud.environment(deployed.site)
    folder = tmp_path_factory.mktemp("landed")
    sites = {reading: watching(connect_environment(environment), landed=folder) for reading in READERS}
    made: dict[str, list[int]] = {reading: [] for reading in READERS}
    for _ in range(REFRESHES):
        before = {reading: watched.sites[0].memory.calls for reading, watched in sites.items()}
        for reading, watched in sites.items():
            watched.read(Topic(reading=reading))
        time.sleep(ROUND_S)  # what is begun beside a reading ends in its round, too
        for reading, watched in sites.items():
            made[reading].append(watched.sites[0].memory.calls - before[reading])
    return made


@pytest.mark.parametrize("reading", READERS)
def test_a_refresh_makes_at_most_ten_calls_the_first_one_too(calls_made: dict[str, list[int]], reading: str) -> None:
    assert len(calls_made[reading]) == REFRESHES
    assert max(calls_made[reading]) <= CALLS_PER_ROUND, calls_made[reading]


def test_all_of_the_overview_is_known_after_some_refreshes(watched: WatchedSites) -> None:
    def is_known(found: Any) -> bool:
        held = [each for part, kinds in found["holds"].items() for kind, each in kinds.items() if kind != "dead"]
        return None not in [*held, found["alarms"]]

    found = until(lambda: overview(watched), is_known)
    assert is_known(found), found


def test_nobody_is_called_while_nobody_looks(watched: WatchedSites) -> None:
    memory = watched.sites[0].memory
    overview(watched)
    time.sleep(ROUND_S)
    before = memory.calls
    time.sleep(ROUND_S)
    assert memory.calls == before


def test_a_missing_right_is_named_and_the_rest_is_there(deployed: Deployed, tmp_path: Path) -> None:
    iam, name = deployed.client("iam"), f"limited-{uuid.uuid4().hex[:8]}"
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="limited", PolicyDocument=json.dumps(LIMITED))
    key = iam.create_access_key(UserName=name)["AccessKey"]
    environment = deployed.cloud.environment(deployed.site) | {
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
    }
    limited = watching(connect_environment(environment), landed=tmp_path)

    def seen() -> Any:
        try:
            return overview(limited)
        except Exception as error:  # noqa: BLE001 - a key acts some seconds after it was made
            return {"troubles": {}, "error": error}

    found = until(seen, lambda each: {"alarms", "metrics"} <= each["troubles"].keys())
    assert "DescribeAlarms" in found["troubles"]["alarms"]
    assert "GetMetricData" in found["troubles"]["metrics"]
    assert found["status"]["splitting"]["queues"]
    assert found["counters"]["rendezvous"]["in"] is not None


class Letters:
    """The page's letters of one text. A queue may deliver twice what dies, and again a letter that is gone."""

    def __init__(self, page: Page, queue: str, text: str) -> None:
        self.page, self.queue = page, queue
        self.shown = page.locator(".letters > li").filter(has_text=text)
        self.moved = (
            page.get_by_role("table", name="Queues")
            .get_by_role("row")
            .filter(has=page.get_by_role("link", name=queue, exact=True))
            .get_by_role("cell")
            .last
        )

    @property
    def ids(self) -> set[str]:
        return set(self.shown.evaluate_all("shown => shown.map(each => each.dataset.key)"))

    def one(self, id_: str) -> Locator:
        return self.page.locator(f".letters > li[data-key='{id_}']")

    def look(self) -> set[str]:
        """Looks again; the ids of those that are there."""
        again = self.page.get_by_role("button", name="Look again")
        again.click()
        expect(again).to_be_enabled()
        return self.ids

    def move(self, begin: Callable[[], None]) -> str:
        """Begins a move and waits for its end, and for the look that this leads to; what the page says of it."""
        begun = self.moved.locator("time")
        before = begun.get_attribute("datetime") if begun.count() else None
        begin()
        until(lambda: begun.get_attribute("datetime"), lambda at: at != before)
        expect(self.moved).not_to_contain_text("running…")
        expect(self.page.get_by_role("button", name="Look again")).to_be_enabled()
        return self.moved.inner_text()

    def purge(self) -> None:
        """Begins to throw all away that are there."""
        for id_ in self.ids:
            self.one(id_).get_by_role("checkbox").check()
        self.page.get_by_role("button", name=re.compile(r"Purge \d+ selected…")).click()
        self.page.keyboard.type(self.queue)
        self.page.keyboard.press("Enter")


def test_a_letter_is_looked_at_put_back_and_thrown_away(deployed: Deployed, page: Page) -> None:
    hostile = f"<b>{uuid.uuid4().hex}</b>"
    rest = f"\u202e{ARABIC} " * 20_000  # so that it is cut in the list
    told = f"{hostile} of 203.0.113.7 {rest}"
    deployed.sqs.send_message(
        QueueUrl=read_stack_output(deployed.connection, "SluiceFederation", "IngressUrl"), MessageBody=told
    )
    page.goto(page.url.split("#")[0] + "#/dead-letters?queue=federation")
    letters = Letters(page, "federation", hostile)
    before = until(letters.look, bool)
    letter = letters.one(min(before))
    letter.locator("summary").click()
    expect(letter.locator("pre")).to_contain_text(f"{hostile} of [address] \u202e{ARABIC}")
    letter.get_by_role("button", name="Show all").click()
    expect(letter.get_by_role("button", name="Show all")).to_have_count(0)
    assert letter.locator("pre").evaluate("shown => shown.textContent") == f"{hostile} of [address] {rest}"

    # What SQS fails of a batch by its own fault stays, and is moved again.
    redrive = letter.get_by_role("button", name="Redrive this")
    said = until(lambda: letters.move(redrive.click), lambda said: bool(re.match("[1-9]", said)))
    assert "redriven" in said
    # It goes back to the exchange, and dies again: under another id.
    assert until(letters.look, lambda ids: bool(ids - before)) - before

    def left_after_a_purge() -> set[str]:
        assert "deleted" in letters.move(letters.purge)
        return letters.look()

    assert not until(left_after_a_purge, lambda left: not left)


@pytest.mark.slow
def test_a_cloud_that_starts_again_is_found_again(tmp_path: Path) -> None:
    """Nothing is deployed to it: that a site has no stacks is an answer, too."""
    cloud = start_cloud(tmp_path / "cloud", save_state=True, ends_with_us=True)
    try:
        watched = watching(connect_environment(cloud.environment(DEFAULT_SITE)), landed=tmp_path / "landed")
        # As a console of the user's finds it: each start draws other keys.
        watched.sites[0].connect = lambda _: connect_environment(cloud.environment(DEFAULT_SITE))
        with chromium() as browser, serving(watched, every_s=0.5) as served, open_page(browser) as page:
            page.set_default_timeout(WITHIN_MS)
            page.goto(served.address)
            card = page.locator("[data-part=splitting]")
            card.wait_for()
            cloud.stop()
            expect(page.get_by_role("alert").first).to_be_visible(timeout=WITHIN_MS)
            expect(card).to_be_visible()
            cloud = start_cloud(tmp_path / "cloud", keep_state=True, ends_with_us=True)
            expect(page.get_by_role("alert")).to_have_count(0, timeout=WITHIN_MS)
            expect(card).to_contain_text("is not deployed")
    finally:
        cloud.stop()
