"""TODO tree."""
