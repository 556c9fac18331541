"""Aggregation in the network: numerics, protocols, models of each published system, a software switch and its client."""
