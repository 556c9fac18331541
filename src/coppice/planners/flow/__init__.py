"""Planners of routed flows: all-to-all, gather and scatter."""
