"""TODO programs."""
