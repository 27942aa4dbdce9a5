"""The sink's options, parsed once, at plan time. Every complaint names its option.

What says where SQS is and as whom to call is spelt and parsed as the source's. The source's other options are passed
over: one view serves SELECT and INSERT.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sluice_spark.errors import InvalidOption
from sluice_spark.options import FLAG, NAMES, SINK_NAMES, one_of, parsed, read, sparks_own
from sluice_spark.sink.outgoing import Deduplication
from sluice_spark.sqs.access import Identity

CONNECTIONS_DEFAULT = 16  # of each task
SHARED = ("queueUrl", "region", "endpoint", "roleArn", "roleSessionName", "externalId", "profile", "maxConnections")
# Spark hands on what was said to the query, and what is said of a table
QUERYS_OWN = {"checkpointlocation", "queryname"}

_OFFERED: Mapping[str, Deduplication] = {"position": "position", "content": "content"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Parsed and in range.

    `queue_urls`: none, and each row names its own; one, for all; several, of which rows name one.
    """

    queue_urls: tuple[str, ...]
    region: str | None
    endpoint: str | None
    identity: Identity
    connections: int = CONNECTIONS_DEFAULT
    fail_on_error: bool = True
    deduplication: Deduplication = "position"


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse a write's options. Raises InvalidOption: unknown, malformed, out of range."""
    values = {name.lower(): str(value).strip() for name, value in given.items()}
    values = {name: value for name, value in values.items() if name not in QUERYS_OWN and not sparks_own(name)}
    for name in values:
        if name not in SINK_NAMES and name not in NAMES:
            offered = sorted([*SHARED, *SINK_NAMES.values()])
            raise InvalidOption(name, f"unknown; the sink has {', '.join(offered)}")
    shared = {name: values[name.lower()] for name in SHARED if name.lower() in values}
    where = parsed({**shared, "stagingLocation": "/"})  # the source's parser wants a place; the sink stages nothing
    return SinkOptions(
        queue_urls=where.queue_urls,
        region=where.region,
        endpoint=where.endpoint,
        identity=where.identity,
        connections=where.connections if "maxConnections" in shared else CONNECTIONS_DEFAULT,
        fail_on_error=read("failOnError", FLAG, values.get("failonerror", "true")),
        deduplication=read("deduplication", one_of(_OFFERED), values.get("deduplication", "position")),
    )
