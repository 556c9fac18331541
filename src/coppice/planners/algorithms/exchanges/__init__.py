"""TODO exchanges."""
