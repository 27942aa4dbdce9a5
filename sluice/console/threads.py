"""Threads for calls that block. Who ends the program doesn't wait for AWS: a call's time-out may be minutes."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class UnawaitedThreads(Executor):
    """So many threads, which end with the program whatever they do: a `ThreadPoolExecutor`'s would be waited for."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]()
        for place in range(number):
            Thread(target=self._run, name=f"console-{place}", daemon=True).start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a thread call it."""
        future = Future[T]()
        self._calls.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - as it is called
        """Have each thread end after what is asked of it; nobody waits."""
        for _ in range(self._number):
            self._calls.put(None)

    def _run(self) -> None:
        while (asked := self._calls.get()) is not None:
            future, call = asked
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
                future.set_exception(error)
