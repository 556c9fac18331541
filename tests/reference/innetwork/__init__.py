"""Readable twins of what the core does for aggregation in the network."""
"""Readable, slow twins of the native machines of cpp/aggregation."""
