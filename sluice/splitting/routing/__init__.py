"""Routing of a split queue's messages, and the copies for sessions. Pure."""
