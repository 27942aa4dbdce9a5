"""The exchange function."""
