"""TODO doctor."""
