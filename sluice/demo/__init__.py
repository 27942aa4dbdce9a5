"""`make demo`: what Sluice does, shown and counted; a module a capability, on the command line's functions."""
