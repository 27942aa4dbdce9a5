"""All kinds of targets in one: `sluice.splitting.ports.Consumers`."""

from collections.abc import Callable
from typing import Any

import msgspec

from sluice.aws.splitting.consumers.clusters import EksClusters
from sluice.aws.splitting.consumers.parameters import Parameters
from sluice.aws.splitting.consumers.services import EcsServices
from sluice.aws.splitting.consumers.triggers import LambdaTriggers
from sluice.aws.splitting.consumers.variables import LambdaVariables
from sluice.errors import BadConsumer
from sluice.kubernetes.api import Api
from sluice.kubernetes.workloads import KubernetesWorkloads
from sluice.splitting.consumers.targets import (
    EcsVariable,
    KubernetesWorkload,
    LambdaTrigger,
    LambdaVariable,
    SystemsManagerParameter,
    Target,
)


class AwsConsumers(msgspec.Struct, frozen=True, kw_only=True):
    """Through clients that are made by service, each when a target needs it: most sites have none of most kinds.

    `arn_prefix` is an ARN of the site's queues without the name. What `original` gave is for its own kind alone.
    `cluster` connects to a Kubernetes cluster by its name; where it isn't given, the name is EKS's.
    """

    client: Callable[[str], Any]
    arn_prefix: str
    now_ms: Callable[[], int]
    cluster: Callable[[str], Api] | None = None

    def original(self, target: Target, *, queue: str) -> str:
        """Read what the target is while it reads this queue. Raises `BadConsumer` and `CallFailed`."""
        match target:
            case LambdaTrigger():
                return self._triggers().original(target, queue=queue)
            case LambdaVariable():
                return self._variables().original(target, queue=queue)
            case SystemsManagerParameter():
                return self._parameters().original(target, queue=queue)
            case EcsVariable():
                return self._services().original(target, queue=queue)
            case KubernetesWorkload():
                return self._workloads().original(target, queue=queue)

    def point(self, target: Target, original: str, *, queue: str, instead_of: str) -> bool:
        """Let it read a queue instead of another; True once every reader is there. Raises as `original` does.

        Variables and parameters are rewritten as they are now: for them the original is what an operator looks at.
        """
        match target:
            case LambdaTrigger():
                return self._triggers().point(target, original, queue=queue, instead_of=instead_of)
            case LambdaVariable():
                return self._variables().point(target, queue=queue, instead_of=instead_of)
            case SystemsManagerParameter():
                return self._parameters().point(target, queue=queue, instead_of=instead_of)
            case EcsVariable():
                return self._services().point(target, original, queue=queue, instead_of=instead_of)
            case KubernetesWorkload():
                return self._workloads().point(target, original, queue=queue, instead_of=instead_of)

    def reads(self, target: Target, *, queue: str) -> bool:
        """Whether it is to read this queue, as it is configured now. Raises `CallFailed`."""
        try:
            if isinstance(target, LambdaTrigger):
                return self._triggers().reads(target, queue=queue)
            if isinstance(target, KubernetesWorkload):
                return self._workloads().reads(target, queue=queue)
            self.original(target, queue=queue)
        except BadConsumer:
            return False
        return True

    def _triggers(self) -> LambdaTriggers:
        return LambdaTriggers(client=self.client("lambda"), arn_prefix=self.arn_prefix)

    def _variables(self) -> LambdaVariables:
        return LambdaVariables(client=self.client("lambda"), arn_prefix=self.arn_prefix)

    def _parameters(self) -> Parameters:
        return Parameters(client=self.client("ssm"), arn_prefix=self.arn_prefix, now_ms=self.now_ms)

    def _services(self) -> EcsServices:
        return EcsServices(client=self.client("ecs"), arn_prefix=self.arn_prefix)

    def _workloads(self) -> KubernetesWorkloads:
        cluster = self.cluster or EksClusters(client=self.client)
        return KubernetesWorkloads(cluster=cluster, arn_prefix=self.arn_prefix, now_ms=self.now_ms)
