"""What becomes of sessions and their queues, and how the registry is stored. Pure."""
