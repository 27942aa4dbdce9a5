"""Topology files: the desired state of several sites, and the plan that makes the sites match. Pure."""
