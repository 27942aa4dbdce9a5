"""The broker function."""
