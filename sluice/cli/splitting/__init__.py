"""`sluice split`: runs sessions, each of which receives its share of the messages of shared queues."""
