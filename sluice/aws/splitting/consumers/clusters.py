"""EKS clusters, to which the function's own role signs in.

A token is the URL of a request to STS that says who asks, signed for one cluster:
https://docs.aws.amazon.com/eks/latest/best-practices/identity-and-access-management.html
"""

import base64
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from sluice.aws.clients import calls
from sluice.errors import CallFailed
from sluice.kubernetes.api import Api
from sluice.kubernetes.connections import connected

TOKEN_PREFIX = "k8s-aws-v1."  # noqa: S105 - what each begins with
TOKEN_S = 60  # EKS takes none that says more
HEADER = "x-k8s-aws-id"
SIGNED = "before-sign.sts.GetCallerIdentity"


class EksClusters(msgspec.Struct, frozen=True, kw_only=True):
    """Through clients that are made by service, each when a cluster needs it. Connections are kept, tokens aren't."""

    client: Callable[[str], Any]
    _known: dict[str, Api] = msgspec.field(default_factory=dict)

    def __call__(self, cluster: str) -> Api:
        """Connect to a cluster by its name. Raises `CallFailed`, also while it is being made."""
        if cluster not in self._known:
            with calls("DescribeCluster"):
                found = self.client("eks").describe_cluster(name=cluster)["cluster"]
            if not found.get("endpoint") or not found.get("certificateAuthority"):
                raise CallFailed("DescribeCluster", found["status"], f"{cluster} has no API server yet")
            authority = base64.b64decode(found["certificateAuthority"]["data"]).decode()
            self._known[cluster] = connected(found["endpoint"], authority, partial(self.token, cluster))
        return self._known[cluster]

    def token(self, cluster: str) -> str:
        """Sign a token for one cluster, which asks nobody. Raises `CallFailed` where there are no credentials."""
        sts = self.client("sts")

        def name_cluster(request: Any, **_: Any) -> None:
            request.headers[HEADER] = cluster

        sts.meta.events.register(SIGNED, name_cluster)
        try:
            with calls("GetCallerIdentity"):
                url: str = sts.generate_presigned_url("get_caller_identity", ExpiresIn=TOKEN_S, HttpMethod="GET")
        finally:
            sts.meta.events.unregister(SIGNED, name_cluster)
        return TOKEN_PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
