"""Decides which sessions get a split queue's messages, and builds the sessions' copies. Pure."""
