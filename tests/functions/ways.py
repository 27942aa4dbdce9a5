"""A message's way through a handler: which files of this repository a warm call enters, and how deep its calls go."""

import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
OURS = (f"{ROOT}/sluice/",)
# Python 3.12 and later, which the functions run on, make no call of these.
INLINED = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})


@dataclass(frozen=True)
class Way:
    """`files` are paths in the repository; `deepest` is the deepest chain of calls, its outermost first."""

    files: frozenset[str]
    deepest: tuple[str, ...]


class Inline(Executor):
    """Runs what it is given at once, so that a batch's calls are one chain in one thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)
        return future


class SideBySide(Executor):
    """Runs what it is given at once, and counts the calls that would follow one another if it ran side by side.

    `calls` are those so far, of the longest chain. Whoever asks for a result has waited for all that led to it.
    """

    def __init__(self) -> None:
        self.calls = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        before = self.calls
        future = _Awaited(self, Inline().submit(fn, *args, **kwargs))
        self.calls = before
        return future


class _Awaited(Future[Any]):
    """What another future has, known only after as many calls as that took."""

    def __init__(self, executor: SideBySide, done: Future[Any]) -> None:
        super().__init__()
        self._executor, self._done, self._calls = executor, done, executor.calls

    def result(self, timeout: float | None = None) -> Any:
        self._executor.calls = max(self._executor.calls, self._calls)
        return self._done.result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._executor.calls = max(self._executor.calls, self._calls)
        return self._done.exception(timeout)


def way_of(call: Callable[[], Any]) -> Way:
    """Trace a call. Only calls of this repository's own functions count, whoever called them."""
    files: set[str] = set()
    chains: list[tuple[str, ...]] = [()]

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event != "call" or not _is_ours(frame.f_code):
            return
        files.add(frame.f_code.co_filename.removeprefix(f"{ROOT}/"))
        chain = []
        caller: FrameType | None = frame
        while caller is not None:
            if _is_ours(caller.f_code):
                chain.append(f"{Path(caller.f_code.co_filename).name}: {caller.f_code.co_qualname}")
            caller = caller.f_back
        if len(chain) > len(chains[-1]):
            chains.append(tuple(reversed(chain)))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return Way(files=frozenset(files), deepest=chains[-1])


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(OURS) and code.co_name not in INLINED
