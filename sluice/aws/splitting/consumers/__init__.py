"""Adapters that re-point consumers: each reads and changes one kind of AWS configuration that names a queue."""
