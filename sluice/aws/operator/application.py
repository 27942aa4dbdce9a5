"""The pipeline's application on EMR Serverless, ended before its stack goes: one that has started isn't deleted.

https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_DeleteApplication.html
"""

from collections.abc import Callable
from dataclasses import dataclass

from sluice.aws.clients import calls
from sluice.aws.operator.connections import Connection
from sluice.aws.pipeline.jobs import EmrRuns
from sluice.errors import SluiceError
from sluice.pipeline.runs import RunState

AT_REST = frozenset({"CREATED", "STOPPED", "TERMINATED"})
GRACE_S = 60  # for a run to end its batch
LOOK_EVERY_S = 2.0
LOOKS = 300  # ten minutes: a run has a grace period


class NotStopped(SluiceError):
    """An application goes on, or a run in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """One application. Calls raise `CallFailed`."""

    connection: Connection
    application_id: str

    def end(self, *, now_ms: Callable[[], int], sleep: Callable[[float], None]) -> None:
        """Cancel its runs, and stop it once they have ended; returns when it has stopped. Raises `NotStopped`."""
        client = self.connection.client("emr-serverless")
        runs = EmrRuns(client=client, application_id=self.application_id, role_arn="")
        self._until(lambda: not self._cancel(runs, now_ms()), "a run of it goes on", sleep)
        if self._state() not in AT_REST:
            with calls("StopApplication"):
                client.stop_application(applicationId=self.application_id)
            self._until(lambda: self._state() in AT_REST, "it goes on", sleep)

    def _cancel(self, runs: EmrRuns, now_ms: int) -> bool:
        """Cancel what is live; whether anything was."""
        live = [run for run in runs.all(now_ms=now_ms) if run.live]
        for run in live:
            if run.state is not RunState.CANCELLING:
                runs.cancel(run.run_id, grace_s=GRACE_S)
        return bool(live)

    def _state(self) -> str:
        with calls("GetApplication"):
            found = self.connection.client("emr-serverless").get_application(applicationId=self.application_id)
        return str(found["application"]["state"])

    def _until(self, is_so: Callable[[], bool], fault: str, sleep: Callable[[float], None]) -> None:
        for _ in range(LOOKS):
            if is_so():
                return
            sleep(LOOK_EVERY_S)
        raise NotStopped(f"application {self.application_id} can't be deleted: {fault}")
