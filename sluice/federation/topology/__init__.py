"""Topologies as files: what a file says there should be, and how sites get there from what they are. Pure."""
