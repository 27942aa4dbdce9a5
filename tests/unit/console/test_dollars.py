"""What today's messages cost: of all parts that are deployed, or unknown."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from sluice.aws.clients import now_ms
from sluice.console.readings.dollars import dollars_of
from sluice.console.sites import KnownSite, SiteMemory

PARTS = ("rendezvous", "splitting", "federation", "pipeline")
OFFERS = {"matched": 1_000_000}
ALL: Mapping[str, Any] = {part: {"is": "there"} for part in PARTS}


def messages_today(said: Mapping[str, Any], *, offers: Mapping[str, int] | None = OFFERS, absent: str = "") -> Any:
    """Dollars of a site whose parts say this; those that say nothing can't be asked, but those that are absent."""
    connection: Any = SimpleNamespace(stage=None)
    site = KnownSite(connection, SiteMemory(stacks={}), is_local=True, calls=0)
    status = {part: said.get(part) for part in PARTS} | {"absent": {each: "" for each in PARTS if each in absent}}
    series = {"federation MessagesReceived": [(now_ms(), 1_000_000.0)]} if said.get("federation") else {}
    return dollars_of(site, status, offers, series)["messages_today"]


def test_messages_of_all_parts_are_counted() -> None:
    both, offers = messages_today(ALL), messages_today({**ALL, "federation": None}, absent="federation")
    assert both > offers > 0


def test_what_isnt_deployed_has_no_messages() -> None:
    only = {"federation": {"is": "there"}}
    assert messages_today(only, offers=None, absent="rendezvous splitting pipeline") > 0


def test_as_long_as_one_part_isnt_known_the_sum_isnt() -> None:
    assert messages_today(ALL, offers=None) is None
    assert messages_today({**ALL, "federation": None}) is None
