"""The commands of federation. Their arguments have the same order as those of Qpid's `qpid-route`."""
