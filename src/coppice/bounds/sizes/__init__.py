"""Bounds on the time of a collective of a given size."""
