"""Who gets a message of a split queue, and what the copies are. Pure."""
