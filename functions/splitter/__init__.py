"""The splitter function, which divides source queues among sessions."""
