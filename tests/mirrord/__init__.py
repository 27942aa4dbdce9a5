"""What mirrord's users have: a workload with two queues as their cluster's resource, and a `mirrord.json`."""

from pathlib import Path
from typing import Any

from sluice.cli.splitting.registration import build_section
from sluice.cli.splitting.resources import import_queues
from sluice.operator.documents import read_documents

RESOURCE = Path(__file__).with_name("meme-app.yaml")
WHOLE = Path(__file__).with_name("mirrord.json")


def queues() -> list[dict[str, Any]]:
    """Those of the resource, as the parameter `splitting.queues` has them."""
    found: list[dict[str, Any]] = build_section(import_queues(read_documents(RESOURCE)).queues.values())["splitting"][
        "queues"
    ]
    return found
