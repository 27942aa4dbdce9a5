"""The bridge function."""
