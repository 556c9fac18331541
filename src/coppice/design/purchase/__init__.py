"""Compare networks by price and performance for a workload."""
