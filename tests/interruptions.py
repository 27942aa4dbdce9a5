"""Clients of AWS and of Kubernetes that fail once: a call is never sent, or its answer never comes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import EndpointConnectionError

from sluice.errors import CallFailed
from sluice.kubernetes.api import Api

MAX_CALLS = 200  # of whatever is to be interrupted
MAX_ROUNDS = 20  # until it is through, with one failure


@dataclass
class Interruptions:
    """Fails one of the calls that its clients make, by its place among them; none where there are not so many."""

    place: int = MAX_CALLS
    after: bool = False
    calls: int = 0

    def watch(self, client: Any) -> Any:
        """Let the client's calls be counted, and one of them fail."""
        client.meta.events.register("before-call", self._before)
        client.meta.events.register("after-call", self._after)
        return client

    def watch_api(self, api: Api) -> Api:
        """The same for an API server of Kubernetes."""

        def send(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
            try:
                self._before()
                answer = api.send(method, path, body)
                self._after()
            except EndpointConnectionError as error:
                raise CallFailed(f"{method} {path}", "EndpointConnectionError", str(error)) from error
            return answer

        return Api(send)

    def _before(self, **_: Any) -> None:
        self.calls += 1
        self._fail(now=not self.after)

    def _after(self, **_: Any) -> None:
        self._fail(now=self.after)

    def _fail(self, *, now: bool) -> None:
        if now and self.calls == self.place + 1:
            raise EndpointConnectionError(endpoint_url="https://interrupted")


def until_true(attempt: Callable[[], bool], *, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Attempt again as the control function does, whatever call fails."""
    for _ in range(MAX_ROUNDS):
        try:
            if attempt():
                return
        except CallFailed as error:
            if error.code != "EndpointConnectionError":
                raise
        meanwhile()
    raise AssertionError(f"not through after {MAX_ROUNDS} rounds")


def each_interruption(scenario: Callable[[Interruptions], None], *, every: int = 1) -> None:
    """Run the scenario once for each of its calls and each way to fail, from the start; or for one of `every` calls.

    With fewer, the calls that fail before they are served are others than those that fail after.
    """
    for after in (False, True):
        for place in range(every // 2 if after else 0, MAX_CALLS, every):
            interruptions = Interruptions(place=place, after=after)
            scenario(interruptions)
            if interruptions.calls <= place:
                break
        else:
            raise AssertionError(f"more than {MAX_CALLS} calls")
