"""Re-points consumers in clusters that the control function can't reach, with an operator's kubeconfig.

The control function stores the steps, and the agent applies them. The agent keeps no state, so that another agent, or
the same one after a crash, continues where it stopped.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.aws.clients import new_id, now_ms
from sluice.aws.splitting.consumers.targets import AwsConsumers
from sluice.cli.output import print_result
from sluice.cli.terminal import print_note
from sluice.errors import BadConfiguration, BadConsumer, CallFailed, RequestRefused
from sluice.kubernetes.connections import connect_by_kubeconfig
from sluice.operations import Operation, R
from sluice.operator.functions import ControlClient
from sluice.operator.queues import queue_arn
from sluice.splitting import operations
from sluice.splitting.consumers.targets import describe_target

MAX_STEP_S = 70.0  # A step with all its requests takes at most this number of seconds.
BUSY_INTERVAL_S, IDLE_INTERVAL_S = 1.0, 5.0  # Calls are this many seconds apart, with and without pending steps.


class BadCluster(BadConfiguration):
    """Raised if an option --cluster is malformed, or the site has no consumers to re-point."""


def parse_clusters(clusters: Sequence[str]) -> Mapping[str, str]:
    """Parse `CLUSTER[=CONTEXT]` options. Returns the kubeconfig's context of each cluster. Raises `BadCluster`."""
    contexts: dict[str, str] = {}
    for option in clusters:
        cluster, equals, context = option.partition("=")
        if not cluster or (equals and not context):
            raise BadCluster(f"--cluster: {option!r} is not CLUSTER or CLUSTER=CONTEXT")
        if cluster in contexts:
            raise BadCluster(f"--cluster: {cluster} is given twice: leave out one of them")
        contexts[cluster] = context or cluster
    return contexts


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An agent that re-points consumers in clusters. Each run has its own `name`; `ask` calls the control function."""

    name: str
    clusters: tuple[str, ...]
    consumers: AwsConsumers
    ask: Callable[[Operation[R]], R]

    now_s: Callable[[], float] = time.time  # A wall clock also counts the time for which the machine sleeps.
    _last_lines: dict[str, str] = field(default_factory=dict)  # the last line that was printed about each consumer

    @classmethod
    def create(cls, client: ControlClient, contexts: Mapping[str, str], *, kubeconfig: str | None) -> "Agent":
        """Connect to clusters by their contexts in a kubeconfig file. If it is None, Kubernetes' rules find the file.

        Raises `BadCluster`, connection errors, and the control function's errors.
        """
        apis = {cluster: connect_by_kubeconfig(context, file=kubeconfig) for cluster, context in contexts.items()}
        queues = client.ask(operations.ShowSplitting()).queues
        if not queues:
            raise BadCluster("there is nothing to re-point: no queue can be split at this site")
        prefix = queue_arn(client.connection, queues[0].source).rpartition(":")[0]
        consumers = AwsConsumers(
            client=client.connection.client, arn_prefix=f"{prefix}:", now_ms=now_ms, cluster=apis.__getitem__
        )
        return cls(name=f"agent-{new_id()}", clusters=tuple(contexts), consumers=consumers, ask=client.ask)

    def apply_pending_steps(self) -> float:
        """Apply the pending steps, and return the seconds to wait before the next call. Prints calls that failed."""
        asked_s = self.now_s()
        try:
            taken = self.ask(operations.TakeSteps(agent=self.name, clusters=self.clusters))
            if not taken.steps:
                return IDLE_INTERVAL_S
            until_s = asked_s + taken.lease_s - MAX_STEP_S  # A step that begins later might outlast the lease.
            reports = tuple(self._apply_step(step) for step in taken.steps if self.now_s() < until_s)
            if reports:
                self.ask(operations.ReportSteps(agent=self.name, reports=reports))
        except (CallFailed, RequestRefused) as error:
            print_note(f"{error}; trying again")
            return IDLE_INTERVAL_S
        return BUSY_INTERVAL_S

    def _apply_step(self, step: operations.ConsumerStep) -> operations.StepReport:
        """Apply a step, print its outcome if that differs from the last one printed, and return the step's report."""
        outcome: operations.Outcome = "waits"
        text = code = ""
        try:
            if step.original is None:
                outcome, text = "seen", self.consumers.read_original(step.target, queue=step.queue)
                if len(text) > (limit := operations.MAX_REPORT_CHARACTERS):
                    outcome, text = "refused", f"{describe_target(step.target)}: {len(text)} characters, over {limit}"
            elif self.consumers.point(step.target, step.original, queue=step.queue, instead_of=step.instead_of):
                outcome = "moved"
        except BadConsumer as error:
            outcome, text = "refused", str(error)
        except CallFailed as error:
            outcome, text, code = "failed", str(error), error.code
        name, reason = describe_target(step.target), text if outcome in {"refused", "failed"} else ""
        said = f"{name}: {outcome}, {step.queue}{': ' if reason else ''}{reason}"
        if self._last_lines.get(name) != said:
            self._last_lines[name] = said
            document = {"consumer": name, "outcome": outcome, "queue": step.queue, "reason": reason or None}
            print_result(document, said)
        return operations.StepReport(
            queue_id=step.queue_id,
            place=step.place,
            queue=step.queue,
            outcome=outcome,
            text=text[: operations.MAX_REPORT_CHARACTERS],  # Error texts of the Kubernetes API have no maximum length.
            code=code[: operations.MAX_REPORT_CHARACTERS],
        )
