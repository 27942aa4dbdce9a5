"""Workloads of Kubernetes clusters whose queue is re-pointed, asked for and changed at the clusters' API servers."""
