"""The exchange function, which routes published messages to bound queues."""
