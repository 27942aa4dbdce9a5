"""Streams a site's data to web pages as server-sent events. A topic is read while any page follows it.

Readings run in daemon threads, so that ending the program does not wait for AWS calls, whose time-outs may be minutes.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from sluice.console.requests import Topic
from sluice.console.sites import Document
from sluice.errors import SluiceError
from sluice.operator.site_status import run_in_thread

READ_INTERVAL_S = 2.0  # seconds from the end of one reading of a topic to the start of the next reading
KEEPALIVE_S = 15.0  # After this number of seconds without an event, a comment keeps proxies from closing the stream.
MAX_TOPICS = 32  # A page can follow at most this number of topics.


@dataclass(slots=True, eq=False)
class Listener:
    """A connected web page with its unsent events. Only the newest event of each topic is kept."""

    unsent: dict[str, str] = field(default_factory=dict)
    has_unsent: asyncio.Event = field(default_factory=asyncio.Event)

    def queue_event(self, topic: str, event: str) -> None:
        """Queue an event for the page. It replaces an older unsent event of the same topic."""
        self.unsent[topic] = event
        self.has_unsent.set()

    def take_events(self) -> list[str]:
        """Return the page's unsent events and remove them from the queue."""
        events = list(self.unsent.values())
        self.unsent.clear()
        self.has_unsent.clear()
        return events


@dataclass(slots=True)
class _Feed:
    listeners: set[Listener] = field(default_factory=set)
    last_event: str = ""
    task: "asyncio.Task[None]" = field(init=False)


@dataclass(slots=True, kw_only=True)
class TopicFeeds:
    """Reads all topics that pages follow, in one event loop. `read` may block, because each call has its own thread."""

    read: Callable[[Topic], Document]
    every_s: float = READ_INTERVAL_S
    _feeds: dict[str, _Feed] = field(default_factory=dict)
    # Reads continue, and stay in this dictionary, even if all pages of their topic have disconnected.
    _running_reads: dict[str, "asyncio.Future[str]"] = field(default_factory=dict)
    _ended: bool = False

    @property
    def followed(self) -> Sequence[str]:
        """The topics that at least one page follows."""
        return list(self._feeds)

    async def stream_events(self, topics: Sequence[Topic]) -> AsyncGenerator[str]:
        """Yield each topic's latest event, then new events, until the page disconnects or `end_streams` is called."""
        if self._ended:
            return
        listener = Listener()
        names = list(dict.fromkeys(map(str, topics)))
        try:
            for name in names:
                if name not in self._feeds:
                    self._feeds[name] = feed = _Feed()
                    feed.task = asyncio.create_task(self._read_repeatedly(Topic.parse(name), feed))
                feed = self._feeds[name]
                feed.listeners.add(listener)
                if feed.last_event:
                    listener.queue_event(name, feed.last_event)
            yield ": follows\n\n"
            while not self._ended:
                try:
                    async with asyncio.timeout(KEEPALIVE_S):
                        await listener.has_unsent.wait()
                except TimeoutError:
                    yield ": still here\n\n"
                for event in listener.take_events():
                    yield f"data: {event}\n\n"
        finally:
            for name in names:
                feed = self._feeds[name]
                feed.listeners.remove(listener)
                if not feed.listeners:
                    feed.task.cancel()
                    del self._feeds[name]

    def end_streams(self) -> None:
        """End all current event streams, and let future ones end immediately."""
        self._ended = True
        for feed in self._feeds.values():
            for listener in feed.listeners:
                listener.has_unsent.set()
        for reading in list(self._running_reads.values()):
            reading.cancel()

    async def _read_repeatedly(self, topic: Topic, feed: _Feed) -> None:
        """Read a topic repeatedly until the task is cancelled. No read starts while an earlier one still runs."""
        name = str(topic)
        while not self._ended:
            if name not in self._running_reads:
                reading = asyncio.wrap_future(run_in_thread(partial(self._read_as_event, topic)))
                self._running_reads[name] = reading
                reading.add_done_callback(lambda _: self._running_reads.pop(name))
            event = await asyncio.shield(self._running_reads[name])
            if event != feed.last_event:
                feed.last_event = event
                for listener in feed.listeners:
                    listener.queue_event(name, event)
            await asyncio.sleep(self.every_s)

    def _read_as_event(self, topic: Topic) -> str:
        name = str(topic)
        try:
            return to_json({"topic": name, "document": self.read(topic)})
        except SluiceError as error:
            return to_json({"topic": name, "error": str(error)})
        except Exception as error:  # noqa: BLE001 - one reading fails by a bug: the page shows it and other readings continue
            return to_json({"topic": name, "error": f"{type(error).__name__}: {error}"})


def to_json(document: Any) -> str:
    """Encode a document as one line of ASCII JSON. ASCII is used because UTF-8 can't represent lone surrogates.

    Raises `TypeError` or `ValueError` for values that JSON does not have, such as NaN.
    """
    return json.dumps(msgspec.to_builtins(document), allow_nan=False)
