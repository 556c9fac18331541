"""Aggregation in the network: numerics, protocols, models of published systems, a software switch and its client."""
