"""Split queues of the deployed site whose consumers are re-pointed, and what those are called."""

NAMED, TRIGGERED = "named", "triggered"  # split queues: their names are configured, or a trigger reads them
FUNCTION, VARIABLE, PARAMETER = "their-worker", "QUEUE", "/their/queue"
CLUSTER, SERVICE, CONTAINER = "theirs", "orders", "app"
CONSUMER = "their-consumer"
REPOINTED = [
    {
        "queue_id": NAMED,
        "consumers": [
            {"type": "lambda variable", "function": FUNCTION, "variable": VARIABLE},
            {"type": "parameter", "name": PARAMETER, "place": {"path": ["queues", "[]", "url"]}},
            {
                "type": "ecs variable",
                "cluster": CLUSTER,
                "service": SERVICE,
                "container": CONTAINER,
                "variable": VARIABLE,
                "place": {"pattern": "queue=([^;]+)"},
            },
        ],
    },
    {"queue_id": TRIGGERED, "fifo": True, "consumers": [{"type": "lambda trigger", "function": CONSUMER}]},
]
