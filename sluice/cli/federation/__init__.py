"""The commands of federation, in qpid-route's order."""
