"""Events of rendezvous, and the statistics that count these events. Pure."""
