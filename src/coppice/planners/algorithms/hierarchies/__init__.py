"""TODO hierarchies."""
