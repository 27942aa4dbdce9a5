"""Adapters that read and change the AWS configuration which names a consumer's queue."""
