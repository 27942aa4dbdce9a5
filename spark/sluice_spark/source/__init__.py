"""Reading: Spark's readers, and the receiver beside the driver that fills the log for them.

What is stored is the log's, what a body means the formats'.
"""
