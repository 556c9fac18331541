"""Slow, readable twins of the native machines of aggregation in the network."""
