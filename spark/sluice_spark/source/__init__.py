"""The source: Spark's readers, and the receiver beside the driver that fills the log for them.

The stored formats are in `log`, the message formats in `formats`.
"""
