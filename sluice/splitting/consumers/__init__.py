"""Consumers that are re-pointed: what is configured, how it is rewritten, and the queues that are made for them.

What asks AWS isn't here.
"""
