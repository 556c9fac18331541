"""TODO design."""
