"""Targets: the kinds of consumer configuration that Sluice can re-point, in configured and stored form. Pure."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from sluice.codec import Format, Struct

MAX_STEPS = 32  # A JSON path has at most this many steps.
MAX_PATTERN = 1_024  # A pattern has at most this many characters.
MAX_CONTAINERS = 20  # A target can name at most this many containers of a pod.
MAX_TIMEOUT_S = 86_400  # A rollout's `timeout_s` is at most a day.

Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=2_048)]


class Place(Struct, frozen=True, kw_only=True):
    """The part of a text that names the queue; the whole text if neither field is set.

    `path` leads into JSON: its steps are keys, or `[]` for each item of a list or value of an object. `pattern` finds
    the queue in the text, or in each string at the path: in its group `queue`, else its first group, else its whole
    match.
    """

    path: Annotated[tuple[str, ...], Meta(max_length=MAX_STEPS)] = ()
    pattern: Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN)] | None = None


class LambdaTrigger(Struct, frozen=True, kw_only=True, tag="lambda trigger"):
    """The event source mapping from the queue to a function. `function` is a name or ARN, with an alias if any."""

    function: Text


class LambdaVariable(Struct, frozen=True, kw_only=True, tag="lambda variable"):
    """An environment variable of a function. `function` is a name or ARN, without a version or an alias."""

    function: Text
    variable: Text
    place: Place = Place()


class SystemsManagerParameter(Struct, frozen=True, kw_only=True, tag="parameter"):
    """A Systems Manager parameter. `refresh_s` is the time in seconds for which its readers may cache the value."""

    name: Text
    refresh_s: Annotated[int, Meta(ge=0, le=86_400)] = 0
    place: Place = Place()


class EcsVariable(Struct, frozen=True, kw_only=True, tag="ecs variable"):
    """An environment variable of a container in an ECS service's tasks."""

    cluster: Text
    service: Text
    container: Text
    variable: Text
    place: Place = Place()


class KubernetesWorkload(Struct, frozen=True, kw_only=True, tag="kubernetes", omit_defaults=True):
    """A Kubernetes workload's environment variables, or a file of one of its volumes: `env`, `env_like` or `volume`.

    `cluster` is the name of an EKS cluster, or a context of a kubeconfig. With `agent`, an agent inside the cluster's
    network makes the changes, and `cluster` is the name with which it was started. `containers` are by default all of
    the pod's. `env` is a variable's name, `env_like` a pattern that matches whole names. `fallback` is the variable's
    value in the named containers if nothing sets it, or only a Secret of `envFrom`. `file` is a key of the `volume`'s
    ConfigMap. `timeout_s` is the limit for replacing the pods. `argo_cd_namespace` is the namespace of Argo CD's
    Applications.
    """

    cluster: Text
    namespace: Text
    kind: Literal["Deployment", "StatefulSet", "Rollout"]
    name: Text
    containers: Annotated[tuple[Text, ...], Meta(max_length=MAX_CONTAINERS)] = ()
    env: Text | None = None
    env_like: Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN)] | None = None
    fallback: Text | None = None
    volume: Text | None = None
    file: Text | None = None
    place: Place = Place()
    timeout_s: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_S)] = 600
    argo_cd_namespace: Text = "argocd"
    agent: bool = False

    def __post_init__(self) -> None:
        """Check that the fields fit together. Raises ValueError, which the decoder reports as an invalid document."""
        if [self.env, self.env_like, self.volume].count(None) != 2:  # noqa: PLR2004 - all but one
            raise ValueError("needs one of env, env_like, and volume with file")
        if (self.volume is None) != (self.file is None):
            raise ValueError("volume and file go together")
        if self.fallback is not None and (self.env is None or not self.containers):
            raise ValueError("fallback is for env in named containers")
        if self.volume is not None and self.containers:
            raise ValueError("a volume is the whole pod's, not one of containers")


Target: TypeAlias = LambdaTrigger | LambdaVariable | SystemsManagerParameter | EcsVariable | KubernetesWorkload


class Consumer(Struct, frozen=True, kw_only=True):
    """A target of a split queue. `original` is its state before any change, in its adapter's format.

    `at` is the queue that the consumer was last seen reading, None if it was never checked. `to` is the queue to which
    it is being moved: until the move is complete, it may read either queue. Its owner may make it read the source again
    at any time.
    """

    target: Target
    original: str | None = None
    at: str | None = None
    to: str | None = None

    def describe_place(self, source: str) -> str:
        """Describe which queue the consumer reads."""
        place = self.at or source
        return place if self.to is None else f"on the way from {place} to {self.to}"

    def next_move(self, wanted: str, *, source: str) -> tuple[str, tuple[str, ...]] | None:
        """Return the queue to move to, and all that the consumer may read now; None if it reads the wanted queue.

        If the queue of an unfinished move is no longer wanted, the consumer moves to the source, which every consumer
        can read.
        """
        if self.at is None or (self.at == wanted and self.to is None):
            return None
        queue = wanted if self.to in {None, wanted} else source
        maybe = dict.fromkeys(name for name in (self.at, self.to, source) if name not in {None, queue})
        return queue, tuple(name for name in maybe if name is not None)


class Consumers(Struct, frozen=True, kw_only=True):
    """All consumers to re-point for one split queue, in order.

    `splitter_on`: the splitter's trigger was last seen enabled, or None while it is being switched. `held_by` is the
    only invocation that may change the consumers until `held_until_ms`.
    """

    queue_id: str
    consumers: tuple[Consumer, ...] = ()
    splitter_on: bool | None = False
    held_by: str = ""
    held_until_ms: int = 0


CONSUMERS = Format(kind="consumers", version=1, type=Consumers)


def find_variable(target: Target) -> str | None:
    """Find the environment variable whose value is a queue's name or URL. Returns None if the target has none."""
    name: str | None = getattr(target, "variable", None) or getattr(target, "env", None)
    return None if getattr(target, "place", None) != Place() else name


def describe_target(target: Target) -> str:
    """Describe a target to an operator, such as `variable QUEUE of function orders`."""
    match target:
        case LambdaTrigger():
            return f"trigger of function {target.function}"
        case LambdaVariable():
            return f"variable {target.variable} of function {target.function}"
        case SystemsManagerParameter():
            return f"parameter {target.name}"
        case EcsVariable():
            of = f"container {target.container} of service {target.cluster}/{target.service}"
            return f"variable {target.variable} of {of}"
        case KubernetesWorkload():
            return f"{_describe_setting(target)} of {target.kind} {target.cluster}/{target.namespace}/{target.name}"


def find_agent_cluster(target: Target) -> str | None:
    """Return the cluster whose agent changes this target; None if the control function changes the target itself."""
    return target.cluster if isinstance(target, KubernetesWorkload) and target.agent else None


def _describe_setting(target: KubernetesWorkload) -> str:
    if target.volume is not None:
        return f"file {target.file} of volume {target.volume}"
    variables = f"variable {target.env}" if target.env is not None else f"variables like {target.env_like}"
    if not target.containers:
        return variables
    return f"{variables} of container{'s'[: len(target.containers) - 1]} {', '.join(target.containers)}"
