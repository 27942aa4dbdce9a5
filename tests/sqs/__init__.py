"""An in-memory SQS over HTTP, for load and for faults: visibility, FIFO locks, latency, scripted failures.

Not a model of IAM, redrive or billing. Only the standard library, so that any environment can start it.
"""
