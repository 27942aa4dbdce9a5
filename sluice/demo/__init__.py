"""`make demo`: runs Sluice's commands on an embedded cloud, and counts the messages that arrive."""
