"""The staged log: its segments, its offsets, the store of its objects, and the planning of batches.

`sluice_spark.source` receives the messages. Every stored format has its version in this package.
"""
