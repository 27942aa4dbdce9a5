"""SQS as federation asks for it: the site's own queues."""

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
        """Let a queue have these attributes, and no policy; whether it lacked some. Raises `QueueGone`."""
        with calls("GetQueueAttributes", queue=name):
            found = self.client.get_queue_attributes(QueueUrl=self.url(name), AttributeNames=["All"])["Attributes"]
        known: Mapping[str, str] = {str(each): value for each, value in found.items()}
        lacking = {
            each: value for each, value in attributes.items() if _spelled(each, known) != _spelled(each, attributes)
        }
        if known.get(POLICY):
            lacking[POLICY] = ""
        if lacking:
            with calls("SetQueueAttributes", queue=name):
                # boto3's type names every attribute; ours are those of another queue.
                self.client.set_queue_attributes(QueueUrl=self.url(name), Attributes=lacking)  # type: ignore[arg-type]
        return bool(lacking)


def _spelled(name: str, attributes: Mapping[str, str]) -> object:
    """Give an attribute's value such that equal ones are equal: SQS spells a redrive policy in its own way."""
    value = attributes.get(name)
    if name != REDRIVE_POLICY or not value:
        return value
    return {key: str(part) for key, part in json.loads(value).items()}
