"""Calls the right adapter for each kind of target, and connects to the EKS clusters of Kubernetes targets.

The function signs in to a cluster with its own role. A token is a presigned URL of STS's `GetCallerIdentity`, signed
for one cluster: https://docs.aws.amazon.com/eks/latest/best-practices/identity-and-access-management.html
"""

import base64
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, cast

import msgspec

from sluice.aws.clients import calls
from sluice.aws.splitting.consumers.lambda_functions import LambdaTriggers, LambdaVariables
from sluice.aws.splitting.consumers.parameters import Parameters
from sluice.aws.splitting.consumers.services import EcsServices
from sluice.errors import BadConsumer, CallFailed
from sluice.kubernetes.api import Api
from sluice.kubernetes.connections import connect
from sluice.kubernetes.workloads import KubernetesWorkloads
from sluice.splitting.consumers.targets import (
    EcsVariable,
    KubernetesWorkload,
    LambdaTrigger,
    LambdaVariable,
    SystemsManagerParameter,
    Target,
    describe_target,
)
from sluice.splitting.consumers.temporary_queues import PREFIX

TOKEN_PREFIX = "k8s-aws-v1."  # noqa: S105 - what each begins with
TOKEN_S = 60  # A token expires after this many seconds, the most that EKS accepts.
HEADER = "x-k8s-aws-id"
SIGNED = "before-sign.sts.GetCallerIdentity"
READ_ACTIONS = ("sqs:DeleteMessage", "sqs:ReceiveMessage")


class AwsConsumers(msgspec.Struct, frozen=True, kw_only=True):
    """Re-points all kinds of targets. `client` creates the AWS client of a service when a target first needs it.

    `arn_prefix` is the ARN of the site's queues up to their names. A state from `read_original` is only for targets of
    the same kind. `cluster` connects to a Kubernetes cluster by its name, by default that of an EKS cluster.
    """

    client: Callable[[str], Any]
    arn_prefix: str
    now_ms: Callable[[], int]
    cluster: Callable[[str], Api] | None = None

    def read_original(self, target: Target, *, queue: str) -> str:
        """Return the original state of a target that reads this queue. Raises `BadConsumer` and `CallFailed`.

        The caller must store the state before the first call of `point`. This method changes nothing.
        """
        return cast("str", self._build_adapter(target).read_original(target, queue=queue))

    def point(self, target: Target, original: str, *, queue: str, instead_of: Collection[str]) -> bool:
        """Make the target read `queue`, whichever queue of `instead_of` it reads now. Returns True once all readers do.

        This method never waits: if it returns False or raises, the caller calls it again, also after a crash. Changes
        that others make in the meantime are kept; without such changes, moving back restores exactly the original
        state. Raises the same errors as `read_original`. Variables and parameters are rewritten in their current value;
        their stored original is only shown to operators.
        """
        return cast("bool", self._build_adapter(target).point(target, original, queue=queue, instead_of=instead_of))

    def check_role(self, target: Target, *, source: str, queue: str) -> str:
        """Check that a role that may read the queue `source` may also read `queue`, by IAM's simulation.

        Changes nothing. Returns "", or the reason if IAM refuses to simulate. Raises `BadConsumer` if the role lacks
        permissions, and `CallFailed`.
        """
        # Lambda itself checks the role of a function with a trigger. The roles of other kinds of consumers are unknown.
        role = self._build_adapter(target).read_role(target) if isinstance(target, EcsVariable | LambdaVariable) else ""
        try:
            denied = self._list_denied_actions(role, queue) if role else set()
            # If the source is denied as well, a queue policy or a condition allows it, which IAM doesn't simulate.
            lacking = ", ".join(sorted(denied - self._list_denied_actions(role, source))) if denied else ""
        except CallFailed as error:
            if error.is_transient:
                raise
            return f"{role} isn't proved to read {queue}: {error}"
        if lacking:
            cause = f"{role} lacks {lacking} on {self.arn_prefix}{queue}: allow it on {self.arn_prefix}{PREFIX}*"
            raise BadConsumer(describe_target(target), cause)
        return ""

    def _list_denied_actions(self, role: str, queue: str) -> set[str]:
        with calls("SimulatePrincipalPolicy"):
            results = self.client("iam").simulate_principal_policy(
                PolicySourceArn=role, ActionNames=READ_ACTIONS, ResourceArns=[self.arn_prefix + queue]
            )["EvaluationResults"]
        return {result["EvalActionName"] for result in results if result["EvalDecision"] != "allowed"}

    def reads(self, target: Target, *, queue: str) -> bool:
        """Return whether the target's configuration names this queue now. Changes nothing. Raises `CallFailed`."""
        try:
            if isinstance(target, LambdaTrigger | KubernetesWorkload):
                return cast("bool", self._build_adapter(target).reads(target, queue=queue))
            self.read_original(target, queue=queue)
        except BadConsumer:
            return False
        return True

    def _build_adapter(self, target: Target) -> Any:
        """Create the adapter for targets of this target's kind."""
        match target:
            case LambdaTrigger():
                return LambdaTriggers(client=self.client("lambda"), arn_prefix=self.arn_prefix)
            case LambdaVariable():
                return LambdaVariables(client=self.client("lambda"), arn_prefix=self.arn_prefix)
            case SystemsManagerParameter():
                return Parameters(client=self.client("ssm"), arn_prefix=self.arn_prefix, now_ms=self.now_ms)
            case EcsVariable():
                return EcsServices(client=self.client("ecs"), arn_prefix=self.arn_prefix)
            case KubernetesWorkload():
                cluster = self.cluster or EksClusters(client=self.client)
                return KubernetesWorkloads(cluster=cluster, arn_prefix=self.arn_prefix, now_ms=self.now_ms)


class EksClusters(msgspec.Struct, frozen=True, kw_only=True):
    """Connects to EKS clusters by name, and caches connections without tokens. `client` creates AWS clients."""

    client: Callable[[str], Any]
    _connections: dict[str, Api] = msgspec.field(default_factory=dict)

    def __call__(self, cluster: str) -> Api:
        """Connect to a cluster by its name. Raises `CallFailed`, also while the cluster is being created."""
        if cluster not in self._connections:
            with calls("DescribeCluster"):
                description = self.client("eks").describe_cluster(name=cluster)["cluster"]
            if not description.get("endpoint") or not description.get("certificateAuthority"):
                raise CallFailed("DescribeCluster", description["status"], f"{cluster} has no API server yet")
            authority = base64.b64decode(description["certificateAuthority"]["data"]).decode()
            self._connections[cluster] = connect(description["endpoint"], authority, partial(self.token, cluster))
        return self._connections[cluster]

    def token(self, cluster: str) -> str:
        """Sign a token for one cluster. Sends no request. Raises `CallFailed` if the function has no credentials."""
        sts = self.client("sts")

        def set_cluster_header(request: Any, **_: Any) -> None:
            request.headers[HEADER] = cluster

        sts.meta.events.register(SIGNED, set_cluster_header)
        try:
            with calls("GetCallerIdentity"):
                url: str = sts.generate_presigned_url("get_caller_identity", ExpiresIn=TOKEN_S, HttpMethod="GET")
        finally:
            sts.meta.events.unregister(SIGNED, set_cluster_header)
        return TOKEN_PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
