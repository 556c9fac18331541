"""Readable, slow twins of what the core does for aggregation in the network."""
