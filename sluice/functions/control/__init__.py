"""The control function."""
