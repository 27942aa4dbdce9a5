"""The counters function."""
