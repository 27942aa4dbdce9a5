"""What mirrord's users have: a workload with two queues as their cluster's resource, and a `mirrord.json`."""

from pathlib import Path
from typing import Any

from sluice.cli.splitting.registration import section_of
from sluice.cli.splitting.resources import imported
from sluice.operator.documents import documents_of

RESOURCE = Path(__file__).with_name("meme-app.yaml")
WHOLE = Path(__file__).with_name("mirrord.json")


def queues() -> list[dict[str, Any]]:
    """Those of the resource, as the parameter `splitting.queues` has them."""
    found: list[dict[str, Any]] = section_of(imported(documents_of(RESOURCE)).queues.values())["splitting"]["queues"]
    return found
