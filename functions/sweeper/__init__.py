"""The sweeper function, which deletes abandoned queues."""
