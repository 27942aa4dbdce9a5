"""Writing: rows to messages to batches, and their sending. Nothing is staged here, and nothing of the source known."""
