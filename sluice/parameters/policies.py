"""The parameters of a policy, which limits what sessions may request of certain queues."""

from collections.abc import Collection, Sequence

from sluice.codec import encode
from sluice.parameters import values as v
from sluice.parameters.values import InconsistentParameter, Model, param
from sluice.splitting.filters.values import MAX_SESSIONS, Mode
from sluice.splitting.operations import MAX_TIME_LIMIT_S
from sluice.splitting.policies import Policy

POLICIES_MAX_BYTES = 4_000  # as JSON; a share of the 40 KB of site-dependent settings of a function
WILDCARDS = frozenset("*?[")


class PolicyParameters(Model):
    """Rules for the queues whose ids match one of the patterns."""

    queues: tuple[v.QueueIdPattern, ...] = param(
        ("*",),
        "Queue ids that the policy applies to; `*`, `?` and `[…]` are wildcards. An entry without wildcards must be "
        "the id of a listed queue",
        max_length=15,
    )
    required_attributes: tuple[v.AttributeName, ...] = param(
        (), "Message attributes that every session's filter must use", max_length=10
    )
    allow_jq: bool = param(True, "Whether sessions may filter with jq programs")
    modes: tuple[Mode, ...] = param(tuple(Mode), "Modes that sessions may use", max_length=2)
    max_sessions: int | None = param(
        None, "Most live sessions on one queue. Null: only Sluice's own limit applies", ge=0, le=MAX_SESSIONS
    )
    max_time_limit_s: int | None = param(
        None,
        "Longest time limit of a session, in seconds; with it, every session must set a limit. Null: no time limit "
        "is required",
        ge=1,
        le=MAX_TIME_LIMIT_S,
    )

    @property
    def policy(self) -> Policy:
        """The policy in the functions' settings. Fields that were not set are left out."""
        return Policy(**{name: getattr(self, name) for name in self.model_fields_set})


def check_policies(policies: Sequence[PolicyParameters], queue_ids: Collection[str]) -> None:
    """Raise `InconsistentParameter` for a policy of an unknown queue, and for too many bytes of policies."""
    for number, policy in enumerate(policies):
        for name in policy.queues:
            if name not in queue_ids and not WILDCARDS & set(name):
                raise InconsistentParameter(
                    "policies", f"[{number}]: there is no queue {name}, so the policy would have no effect"
                )
    size = len(encode([policy.policy for policy in policies]))
    if size > POLICIES_MAX_BYTES:
        raise InconsistentParameter(
            "policies", f"all policies have {size} bytes as JSON, more than {POLICIES_MAX_BYTES}"
        )
