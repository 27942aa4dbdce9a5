"""The counters function, which counts rendezvous events."""
