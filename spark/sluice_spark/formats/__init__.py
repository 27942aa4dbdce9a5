"""Formats of message bodies: envelopes, and pointers to payloads in S3.

This package depends neither on the log nor on Spark: it takes and returns Arrow batches.
"""
