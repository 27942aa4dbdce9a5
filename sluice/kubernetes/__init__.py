"""Re-points Kubernetes workloads to another queue, through their clusters' API servers."""
