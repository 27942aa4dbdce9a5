"""How a message gets from a queue into a table, exactly once, and which jobs read the table."""

from sluice.pictures.graph import draw_graph
from sluice.pictures.layout import Edge, Node
from sluice.pictures.svg import Colour, document
from sluice.pipeline.jobs import StorageLocations

BUCKET = StorageLocations(root="s3://bucket")
SPARK, KEPT = Colour.GOOD, Colour.ONE


def drawn() -> str:
    """Draw the land job's steps, and who reads what it landed."""
    nodes = {
        "queue": Node(lines=("pipeline's main queue", "SQS")),
        "receiver": Node(lines=("receiver", "beside the Spark driver"), colour=SPARK),
        "segments": Node(lines=("segments", BUCKET.folder("staging")), colour=KEPT),
        "batch": Node(lines=("a batch", "Spark's tasks"), colour=SPARK),
        "checkpoint": Node(lines=("offsets", BUCKET.folder("checkpoint")), colour=KEPT),
        "messages": Node(lines=("table messages", f"{BUCKET.warehouse}/messages"), colour=KEPT),
        "quarantine": Node(lines=("quarantine", BUCKET.folder("quarantine")), colour=KEPT),
        "statistics": Node(lines=("statistics", "daily"), colour=SPARK),
        "compact": Node(lines=("compact", "daily"), colour=SPARK),
        "replay": Node(lines=("replay", "when asked to"), colour=SPARK),
        "exchange": Node(lines=("an exchange",), dashed=True),
    }
    edges = [
        Edge(source="queue", dest="receiver", lines=("1 receives",)),
        Edge(source="receiver", dest="segments", lines=("2 stages",)),
        Edge(source="receiver", dest="queue", lines=("3 deletes what is staged",), colour=Colour.SLOW, dash="6 4"),
        Edge(source="segments", dest="batch", lines=("4 reads; after a failure", "the same rows again")),
        Edge(source="batch", dest="messages", lines=("5 one commit",)),
        Edge(source="batch", dest="quarantine", lines=("what can't be read",)),
        Edge(source="batch", dest="checkpoint", lines=("6 what is done",)),
        Edge(source="messages", dest="statistics"),
        Edge(source="messages", dest="compact", both_ways=True),
        Edge(source="messages", dest="replay"),
        Edge(source="replay", dest="exchange"),
    ]
    graph = draw_graph(nodes, edges, downwards=True)
    return document(graph.size, graph.parts, title="How a message is landed: from the queue into tables")
