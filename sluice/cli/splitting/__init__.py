"""`sluice split`: sessions on shared queues."""
