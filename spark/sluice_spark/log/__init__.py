"""The staged log: its segments and offsets, the store that they lie in, what is planned from them.

Who receives what is staged is the source's; the formats that are stored here have their versions here.
"""
