"""SQS as federation asks for it: the site's own queues."""

from dataclasses import dataclass

from sluice.aws.splitting.queues import SplitQueues


@dataclass(frozen=True, slots=True)
class SqsSiteQueues(SplitQueues):
    """`sluice.federation.ports.SiteQueues`. `arn_prefix` is an ARN of the site's queues without the name."""

    arn_prefix: str = ""

    def arn(self, name: str) -> str:
        """Return a queue's ARN."""
        return self.arn_prefix + name
