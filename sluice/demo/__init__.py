"""`make demo`: runs Sluice's commands on an embedded cloud (an AWS emulator), and counts the messages that arrive."""
