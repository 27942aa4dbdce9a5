"""Handles the operations of the control function."""

from collections.abc import Callable, Mapping

import msgspec

from sluice.codec import pick_shared_fields
from sluice.splitting import operations
from sluice.splitting.consumers.targets import describe_target, find_variable
from sluice.splitting.control import Control
from sluice.splitting.filters.files import check_filters
from sluice.splitting.filters.jq import CompileProblem
from sluice.splitting.filters.texts import Envelope
from sluice.splitting.pointing import HOLD_MS
from sluice.splitting.sessions.state import Reason, Registry, Session
from sluice.splitting.settings import SplitConfig

MAX_DESCRIPTION_CHARACTERS = 200


class OperationHandler(msgspec.Struct, frozen=True, kw_only=True):
    """Applies the operations of one invocation. `counts` returns the numbers of sent messages by session id."""

    control: Control
    compile_problem: CompileProblem
    counts: Callable[[], Mapping[str, int]]
    url: Callable[[str], str]  # returns the URL of a queue by its name

    def apply(self, operation: operations.ControlOperation) -> object:
        """Apply the operation, and return its result. Raises `BadConfiguration`, without a change, if it is invalid."""
        result: object = None
        match operation:
            case operations.StartSession():
                check_filters(operation.filters, compile_problem=self.compile_problem)
                result = self.find_session(self.control.start(**msgspec.structs.asdict(operation)))
            case operations.StopSession():
                self.control.stop(operation.session_id, operation.reason or Reason.STOPPED)
                result = self.find_session(operation.session_id)
            case operations.KeepSession():
                result = operations.SessionStatus(
                    **pick_shared_fields(self.control.heartbeat(operation.session_id), operations.SessionStatus)
                )
            case operations.FindSession():
                result = self.find_session(operation.session_id)
            case operations.ShowSplitting():
                result = self.show_splitting()
            case operations.ReleaseQueue():
                self.control.release_queue(operation.queue_id)
            case operations.TakeSteps():
                steps = self.control.take_steps(operation.agent, operation.clusters)
                result = operations.ConsumerSteps(steps=steps, lease_s=HOLD_MS // 1_000)
            case operations.ReportSteps():
                self.control.report_steps(operation.agent, operation.reports)
            case operations.TickSessions() | operations.SweepQueues():
                self.control.advance()
                result = tuple(self.control.sweep()) if isinstance(operation, operations.SweepQueues) else None
        return result

    def find_session(self, session_id: str) -> operations.AnySession:
        """Return the view of a session with the effects of elapsed time."""
        registry = self.control.view()
        session = registry.sessions.get(session_id)
        if session is None:
            reason = self.control.registry_cache.store.find_ended_reason(session_id) or ""
            return operations.EndedSession(session_id=session_id, reason=reason)
        return self._build_view(registry, session, self.counts())

    def show_splitting(self) -> operations.SplittingView:
        """Return the queues that can be split and all sessions, with the effects of elapsed time."""
        registry, counts = self.control.view(), self.counts()
        ordered = sorted(registry.sessions.values(), key=lambda session: (session.started_at_ms, session.session_id))
        return operations.SplittingView(
            version=registry.version,
            queues=tuple(self._build_queue_view(registry, config) for config in self.control.settings.splits.values()),
            sessions=tuple(self._build_view(registry, session, counts) for session in ordered),
            splits=tuple(
                operations.SplitView(
                    **pick_shared_fields(split, operations.SplitView),
                    consumers={
                        describe_target(consumer.target): consumer.describe_place(split.source)
                        for consumer in registry.find_consumers(split.queue_id).consumers
                    },
                )
                for split in registry.splits.values()
                if not split.is_at_rest
            ),
        )

    def _build_queue_view(self, registry: Registry, config: SplitConfig) -> operations.QueueView:
        split = registry.splits[config.queue_id]
        repointed = self.control.pointing.repointed.get(config.queue_id)
        variables = [find_variable(target) for target in repointed.targets] if repointed else []
        policies = [policy for policy in self.control.settings.policies if policy.applies_to(config.queue_id)]
        return operations.QueueView(
            queue_id=config.queue_id,
            source=self.url(config.source),
            main=self.url(config.main or split.consumer_at or config.source),
            fifo=split.fifo,
            **pick_shared_fields(config, Envelope),
            rules=tuple(rule for policy in policies for rule in policy.rules()),
            variables=tuple(dict.fromkeys(variable for variable in variables if variable is not None)),
        )

    def _build_view(self, registry: Registry, session: Session, counts: Mapping[str, int]) -> operations.SessionView:
        queues = {queue_id: registry.find_session_queue(session.session_id, queue_id) for queue_id in session.filters}
        return operations.SessionView(
            **pick_shared_fields(session, operations.SessionView),
            messages=counts.get(session.session_id, 0),
            queues=tuple(
                operations.SessionQueueView(
                    queue_id=queue_id,
                    mode=session.filters[queue_id].mode,
                    asks_for=session.filters[queue_id].filter.description[:MAX_DESCRIPTION_CHARACTERS],
                    shadowed_by=registry.find_shadow(session, queue_id),
                    name=None if queue is None else queue.name,
                    url=None if queue is None else self.url(queue.name),
                    returned=0 if queue is None else queue.returned,
                )
                for queue_id, queue in queues.items()
            ),
        )
