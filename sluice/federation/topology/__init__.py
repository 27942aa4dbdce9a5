"""Topology files: the desired state of several sites, and the plan of steps to reach this state. Pure."""
