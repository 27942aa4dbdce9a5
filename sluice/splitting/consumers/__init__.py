"""Consumers to re-point: their configuration, how Sluice rewrites it, and their temporary queues.

`sluice.aws` sends the requests to AWS.
"""
