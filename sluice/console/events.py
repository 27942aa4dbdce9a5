"""Readings as they come, to every page that follows them: a topic is read while somebody does, once for all of them.

They are read in threads. Who ends the program doesn't wait for AWS: a call's time-out may be minutes.
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
from sluice.operator.site_status import begin

EVERY_S = 2.0  # between the end of a reading and the next
BEAT_S = 15.0  # so that whoever stands between doesn't take a quiet stream for a dead one
MAX_TOPICS = 32  # of one page


@dataclass(slots=True, eq=False)
class Listener:
    """A page: of each topic the newest reading that it hasn't been sent."""

    unsent: dict[str, str] = field(default_factory=dict)
    something: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, topic: str, said: str) -> None:
        """Have it sent, in place of an older one."""
        self.unsent[topic] = said
        self.something.set()

    def take(self) -> list[str]:
        """Give what is unsent."""
        said = list(self.unsent.values())
        self.unsent.clear()
        self.something.clear()
        return said


@dataclass(slots=True)
class _Feed:
    listeners: set[Listener] = field(default_factory=set)
    last: str = ""
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True, kw_only=True)
class Feeds:
    """All topics that somebody follows. `read` blocks, and has a thread of its own. For one event loop."""

    read: Callable[[Topic], Document]
    every_s: float = EVERY_S
    _feeds: dict[str, _Feed] = field(default_factory=dict)
    _under_way: dict[str, "asyncio.Future[str]"] = field(default_factory=dict)  # also of pages that have gone
    _ended: bool = False

    @property
    def followed(self) -> Sequence[str]:
        """Topics that are read now."""
        return list(self._feeds)

    async def follow(self, topics: Sequence[Topic]) -> AsyncGenerator[str]:
        """Yield events of `text/event-stream` until the page goes, or all `end`; what is known already at once."""
        if self._ended:
            return
        listener = Listener()
        names = list(dict.fromkeys(map(str, topics)))
        try:
            for name in names:
                self._join(name, listener)
            yield ": follows\n\n"
            while not self._ended:
                try:
                    async with asyncio.timeout(BEAT_S):
                        await listener.something.wait()
                except TimeoutError:
                    yield ": still here\n\n"
                for said in listener.take():
                    yield f"data: {said}\n\n"
        finally:
            for name in names:
                self._leave(name, listener)

    def end(self) -> None:
        """End all streams, and those that begin later."""
        self._ended = True
        for feed in self._feeds.values():
            for listener in feed.listeners:
                listener.something.set()
        for reading in list(self._under_way.values()):
            reading.cancel()

    def _join(self, name: str, listener: Listener) -> None:
        feed = self._feeds.setdefault(name, _Feed())
        feed.listeners.add(listener)
        if feed.last:
            listener.tell(name, feed.last)
        if feed.task is None:
            feed.task = asyncio.create_task(self._run(Topic.parse(name), feed))

    def _leave(self, name: str, listener: Listener) -> None:
        feed = self._feeds[name]
        feed.listeners.remove(listener)
        if not feed.listeners:
            if feed.task is not None:
                feed.task.cancel()
            del self._feeds[name]

    async def _run(self, topic: Topic, feed: _Feed) -> None:
        while not self._ended:
            said = await self._read(topic)
            if said != feed.last:
                feed.last = said
                for listener in feed.listeners:
                    listener.tell(str(topic), said)
            await asyncio.sleep(self.every_s)

    async def _read(self, topic: Topic) -> str:
        """Read, or wait for the reading that is under way: a page that comes back again and again takes one thread."""
        name = str(topic)
        if name not in self._under_way:
            reading = asyncio.wrap_future(begin(partial(self._said, topic)))
            self._under_way[name] = reading
            reading.add_done_callback(lambda _: self._under_way.pop(name))
        return await asyncio.shield(self._under_way[name])

    def _said(self, topic: Topic) -> str:
        name = str(topic)
        try:
            return json_of({"topic": name, "document": self.read(topic)})
        except SluiceError as error:
            return json_of({"topic": name, "error": str(error)})
        except Exception as error:  # noqa: BLE001 - one reading fails by our own fault: the page says so, the rest goes on
            return json_of({"topic": name, "error": f"{type(error).__name__}: {error}"})


def json_of(document: Any) -> str:
    """Write a document on one line, in ASCII: half a character, which JSON can name, is none in UTF-8.

    Raises `TypeError` or `ValueError` for what JSON has no word for: a page would stumble over it.
    """
    return json.dumps(msgspec.to_builtins(document), allow_nan=False)
