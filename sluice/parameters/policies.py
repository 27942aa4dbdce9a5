"""The parameters of a policy: what sessions may ask for of the queues that it is about."""

from collections.abc import Collection, Sequence

from sluice.codec import encode
from sluice.parameters import values as v
from sluice.parameters.values import InconsistentParameter, Model, of
from sluice.splitting.filters.values import MAX_SESSIONS, Mode
from sluice.splitting.operations import MAX_TIME_LIMIT_S
from sluice.splitting.policies import Policy

POLICIES_MAX_BYTES = 4_000  # as JSON, of the 40 KB that a function is told of what grows with a site
WILDCARDS = frozenset("*?[")


class PolicyParameters(Model):
    """Rules that hold for the queues whose ids one of the patterns fits."""

    queues: tuple[v.QueueIdPattern, ...] = of(
        ("*",), "patterns of queue ids, as in a shell; one without wildcards must be a queue's id", max_length=15
    )
    required_attributes: tuple[v.AttributeName, ...] = of(
        (), "message attributes that a session's filter must name", max_length=10
    )
    allow_jq: bool = of(True, "sessions may have jq programs")
    modes: tuple[Mode, ...] = of(tuple(Mode), "those of `steal` and `mirror` that sessions may have", max_length=2)
    max_sessions: int | None = of(None, "live sessions on a queue", ge=0, le=MAX_SESSIONS)
    max_time_limit_s: int | None = of(
        None, "a session must have a time limit, and at most this", ge=1, le=MAX_TIME_LIMIT_S
    )

    @property
    def policy(self) -> Policy:
        """The policy as functions know it, from what was given: the rest isn't written."""
        return Policy(**{name: getattr(self, name) for name in self.model_fields_set})


def check_policies(policies: Sequence[PolicyParameters], queue_ids: Collection[str]) -> None:
    """Raise `InconsistentParameter` for rules that would hold for nothing, and for more than a function can be told."""
    for number, policy in enumerate(policies):
        for name in policy.queues:
            if name not in queue_ids and not WILDCARDS & set(name):
                raise InconsistentParameter(
                    "policies", f"[{number}]: there is no queue {name}: its rules would hold for nothing"
                )
    size = len(encode([policy.policy for policy in policies]))
    if size > POLICIES_MAX_BYTES:
        raise InconsistentParameter("policies", f"{size} bytes as JSON, of {POLICIES_MAX_BYTES} at most")
