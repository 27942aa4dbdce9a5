"""An agent: it re-points consumers in clusters that the control function can't reach, with an operator's kubeconfig.

What is to be done it asks the control function, which has it written down before; it keeps nothing itself, so that
another one, or the same after a crash, goes on where it was.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.aws.clients import new_id, now_ms
from sluice.aws.splitting.consumers.targets import AwsConsumers
from sluice.cli.output import tell
from sluice.cli.terminal import note
from sluice.errors import BadConfiguration, BadConsumer, CallFailed, RequestRefused
from sluice.kubernetes.connections import of_kubeconfig
from sluice.operations import Operation, R
from sluice.operator.functions import ControlClient
from sluice.operator.queues import arn_of
from sluice.splitting.consumers.targets import name_of
from sluice.splitting.operations import (
    MAX_REPORTED,
    ConsumerStep,
    ListQueues,
    Outcome,
    ReportSteps,
    StepReport,
    TakeSteps,
)

STEP_S = 70.0  # that a step may take, with all its requests
SOON_S, LATER_S = 1.0, 5.0  # until the next look, where something is under way and where nothing is


class BadCluster(BadConfiguration):
    """A text that says no cluster."""


def contexts_of(clusters: Sequence[str]) -> Mapping[str, str]:
    """Read `CLUSTER[=CONTEXT]` options: the kubeconfig's contexts by cluster. Raises `BadCluster`."""
    found: dict[str, str] = {}
    for option in clusters:
        cluster, equals, context = option.partition("=")
        if not cluster or (equals and not context):
            raise BadCluster(f"--cluster: {option!r} is not CLUSTER or CLUSTER=CONTEXT")
        if cluster in found:
            raise BadCluster(f"--cluster: {cluster} is there twice")
        found[cluster] = context or cluster
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One run of an agent, `name`, which no other has. `ask` asks the control function."""

    name: str
    clusters: tuple[str, ...]
    consumers: AwsConsumers
    ask: Callable[[Operation[R]], R]

    now_s: Callable[[], float] = time.time  # a clock that goes on while the machine sleeps
    _said: dict[str, str] = field(default_factory=dict)  # by consumer, what was said of it last

    @classmethod
    def of(cls, client: ControlClient, contexts: Mapping[str, str], *, kubeconfig: str | None) -> "Agent":
        """Look after clusters by contexts of a kubeconfig, None where Kubernetes' own rules say which file that is.

        Raises `BadCluster`, and whatever connecting and asking raise.
        """
        apis = {cluster: of_kubeconfig(context, file=kubeconfig) for cluster, context in contexts.items()}
        queues = client.ask(ListQueues())
        if not queues:
            raise BadCluster("there is nothing to look after: no queue can be split at this site")
        prefix = arn_of(client.connection, queues[0].source).rpartition(":")[0]
        consumers = AwsConsumers(
            client=client.connection.client, arn_prefix=f"{prefix}:", now_ms=now_ms, cluster=apis.__getitem__
        )
        return cls(name=f"agent-{new_id()}", clusters=tuple(contexts), consumers=consumers, ask=client.ask)

    def look(self) -> float:
        """Do what is to be done now; for how many seconds nobody need look again. What fails is a note."""
        asked_s = self.now_s()
        try:
            taken = self.ask(TakeSteps(agent=self.name, clusters=self.clusters))
            if not taken.steps:
                return LATER_S
            until_s = asked_s + taken.held_s - STEP_S  # nothing is begun that others may begin before it ends
            reports = tuple(self._report(step) for step in taken.steps if self.now_s() < until_s)
            if reports:
                self.ask(ReportSteps(agent=self.name, reports=reports))
        except (CallFailed, RequestRefused) as error:
            note(f"{error}; trying again")
            return LATER_S
        return SOON_S

    def _report(self, step: ConsumerStep) -> StepReport:
        outcome: Outcome = "waits"
        text = code = ""
        try:
            if step.original is None:
                outcome, text = "seen", self.consumers.original(step.target, queue=step.queue)
                if len(text) > MAX_REPORTED:
                    outcome, text = "refused", f"{name_of(step.target)}: {len(text)} characters, over {MAX_REPORTED}"
            elif self.consumers.point(step.target, step.original, queue=step.queue, instead_of=step.instead_of):
                outcome = "moved"
        except BadConsumer as error:
            outcome, text = "refused", str(error)
        except CallFailed as error:
            outcome, text, code = "failed", str(error), error.code
        self._say(step, outcome, text if outcome in {"refused", "failed"} else "")
        return StepReport(
            queue_id=step.queue_id,
            place=step.place,
            queue=step.queue,
            outcome=outcome,
            text=text[:MAX_REPORTED],  # an API's words may be any number
            code=code[:MAX_REPORTED],
        )

    def _say(self, step: ConsumerStep, outcome: str, reason: str) -> None:
        """Note what has become of a consumer, once."""
        name = name_of(step.target)
        said = f"{name}: {outcome}, {step.queue}{': ' if reason else ''}{reason}"
        if self._said.get(name) != said:
            self._said[name] = said
            document = {"consumer": name, "outcome": outcome, "queue": step.queue, "reason": reason or None}
            tell(document, said)
