"""Readable, slow twins of the native machines of cpp/aggregation."""
