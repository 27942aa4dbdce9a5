"""The links function."""
