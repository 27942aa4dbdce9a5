"""Re-pointed consumers: their configuration, how it is rewritten, and their temporary queues.

Requests to AWS are in `sluice.aws`.
"""
