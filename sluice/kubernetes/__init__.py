"""Re-pointing of Kubernetes workloads to another queue, by the clusters' API servers."""
