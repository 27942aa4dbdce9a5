"""The proxy function."""
