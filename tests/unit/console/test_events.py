"""Topics that pages follow: each is read by one at a time, whoever comes and goes."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Semaphore
from typing import Any

from sluice.console.events import TopicFeeds
from sluice.console.requests import Topic

TOPIC = Topic.parse("overview@0")
WITHIN_S = 10


@dataclass
class Reading:
    """One that lasts until it is let."""

    begun: Semaphore = field(default_factory=lambda: Semaphore(0))
    may_end: Event = field(default_factory=Event)
    number: int = 0

    def __call__(self, _: Topic) -> dict[str, Any]:
        self.number += 1
        self.begun.release()
        assert self.may_end.wait(WITHIN_S)
        return {"number": self.number}


def followed(look: Callable[[TopicFeeds, Reading], Any]) -> Any:
    """What somebody sees who follows topics of a reading that lasts."""
    reading = Reading()

    async def looked() -> Any:
        async with asyncio.timeout(WITHIN_S):
            return await look(TopicFeeds(read=reading, every_s=WITHIN_S), reading)

    try:
        return asyncio.run(looked())
    finally:
        reading.may_end.set()


def test_a_page_that_comes_back_waits_for_the_reading_that_is_under_way() -> None:
    async def look(feeds: TopicFeeds, reading: Reading) -> str:
        page = feeds.stream_events([TOPIC])
        await anext(page)
        await asyncio.to_thread(reading.begun.acquire)
        await page.aclose()
        assert not feeds.followed
        page = feeds.stream_events([TOPIC])
        await anext(page)
        reading.may_end.set()
        return await anext(page)

    said = followed(look)
    assert json.loads(said.removeprefix("data: "))["document"] == {"number": 1}


def test_streams_end_and_none_begins_though_a_reading_lasts() -> None:
    async def look(feeds: TopicFeeds, reading: Reading) -> list[str]:
        page = feeds.stream_events([TOPIC])
        await anext(page)
        await asyncio.to_thread(reading.begun.acquire)
        feeds.end_streams()
        return [
            *[said async for said in page],
            *[said async for said in feeds.stream_events([TOPIC])],
            *feeds.followed,
        ]

    assert followed(look) == []
