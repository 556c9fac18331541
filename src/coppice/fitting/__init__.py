"""Fit plans and algorithm choices to a target's limits, message sizes and timings."""
