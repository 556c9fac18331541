"""What people buy, what it costs, and what a workload gets for it."""
