"""Adapts SQS to federation: finds, creates and configures the site's own queues."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.aws.clients import calls
from sluice.aws.splitting.queues import SplitQueues

REDRIVE_POLICY, POLICY = "RedrivePolicy", "Policy"


@dataclass(frozen=True, slots=True)
class SqsSiteQueues(SplitQueues):
    """The site's own queues, by name. `arn_prefix` is an ARN of the site's queues without the name."""

    arn_prefix: str = ""

    def arn(self, name: str) -> str:
        """Return a queue's ARN."""
        return self.arn_prefix + name

    def configure(self, name: str, attributes: Mapping[str, str]) -> bool:
        """Set attributes of a queue and remove its policy. Returns whether anything changed. Raises `QueueGone`."""
        with calls("GetQueueAttributes", queue=name):
            current = self.client.get_queue_attributes(QueueUrl=self.url(name), AttributeNames=["All"])["Attributes"]
        known: Mapping[str, str] = {str(attribute): value for attribute, value in current.items()}
        lacking = {
            attribute: value
            for attribute, value in attributes.items()
            if _normalize(attribute, known) != _normalize(attribute, attributes)
        }
        if known.get(POLICY):
            lacking[POLICY] = ""
        if lacking:
            with calls("SetQueueAttributes", queue=name):
                # boto3's type lists every attribute by name; these names are only known at run time.
                self.client.set_queue_attributes(QueueUrl=self.url(name), Attributes=lacking)  # type: ignore[arg-type]
        return bool(lacking)


def _normalize(name: str, attributes: Mapping[str, str]) -> object:
    """Return an attribute's value in a form that can be compared: SQS reformats redrive policies."""
    value = attributes.get(name)
    if name != REDRIVE_POLICY or not value:
        return value
    return {key: str(part) for key, part in json.loads(value).items()}
