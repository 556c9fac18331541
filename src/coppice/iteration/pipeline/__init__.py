"""Pipelines: which device runs which pass of which stage for which micro-batch, and in which order."""
