"""What mirrord's users have beside a filter file: a whole `mirrord.json`, and a key alone. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

ROOT = "split_queues"
FEATURE = "feature"  # the part of a `mirrord.json` that has it
WHOLE_ROOT = f"{FEATURE}.{ROOT}"

# A mirrord.json may split the queues of other brokers beside SQS's.
OTHER_BROKERS = frozenset(
    ["AzureServiceBus", "BullMQ", "GCPPubSub", "Kafka", "NATS", "NATSPubSub", "RMQ", "RedisPubSub", "Temporal"]
)
MAX_NAMES = 20  # of what is left out, in one note

# Who gives a key and no filter has what carries the key as traces do, in `baggage` or wherever. With mirrord, whose
# marker this is, that is a jq program on all values; a pattern costs a fifteenth, and nothing where the index finds no
# such text; and `alice` doesn't take what is `alice2`'s.
KEY_FILTER = {"filter": {"metadata": r"mirrord-session={{ key }}(?![\w.@-])"}}


def feature_of(document: object) -> Mapping[str, Any] | None:
    """Give the part of a whole `mirrord.json` that has the filters, or None for any other document."""
    feature = document.get(FEATURE) if isinstance(document, dict) and ROOT not in document else None
    return feature if isinstance(feature, dict) else None


def is_of_another_broker(entry: object) -> bool:
    """Whether an entry of `split_queues` is about a broker that isn't SQS."""
    queue_type = entry.get("queue_type") if isinstance(entry, dict) else None
    return isinstance(queue_type, str) and queue_type in OTHER_BROKERS


def left_out_of(document: object) -> str | None:
    """Name what of a whole `mirrord.json` counts for nothing here, or None where there is no such thing."""
    feature = feature_of(document)
    if feature is None or not isinstance(document, dict):
        return None
    names = [str(name) for name in document if name != FEATURE]
    names += [f"{FEATURE}.{name}" for name in feature if name != ROOT]
    names += [f"{WHOLE_ROOT}.{name}" for name in _of_other_brokers(feature.get(ROOT))]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    said = ", ".join(name[:80] for name in sorted(names)[:MAX_NAMES])
    return f"left out, as it isn't about SQS queues: {said}{more}" if names else None


def _of_other_brokers(queues: object) -> Iterator[object]:
    entries = queues.items() if isinstance(queues, dict) else enumerate(queues) if isinstance(queues, list) else ()
    return (name for name, entry in entries if is_of_another_broker(entry))
