"""The splitter function."""
