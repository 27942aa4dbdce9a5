"""Reading: Spark's readers, and who receives for them, a receiver beside the driver or the tasks themselves.

What is stored is the log's, what a body means the formats'.
"""
