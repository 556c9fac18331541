"""Planners: one file per family, each returning a forest or a schedule, independent of each other."""
