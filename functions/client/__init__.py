"""The client function."""
