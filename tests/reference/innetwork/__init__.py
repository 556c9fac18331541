"""Readable, slow references of what the core does for aggregation in the network."""
