"""Planners: one file per family; each returns a forest or a schedule and knows nothing of the others."""
