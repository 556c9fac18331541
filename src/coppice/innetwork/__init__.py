"""In-network aggregation: its numerics, models of published systems, a software switch and its client."""
