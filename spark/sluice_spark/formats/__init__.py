"""Formats of message bodies and of the S3 objects that they name: envelopes, payload pointers, files.

This package depends neither on the log nor on Spark: it takes and returns Arrow batches.
"""
