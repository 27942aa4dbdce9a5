"""Reads and changes, through AWS, the configuration that names the queue of a consumer."""
