"""The source: Spark's readers, and the receiver, a thread that fills the staged log for the readers.

The stored formats are in `log`, the message formats in `formats`.
"""
