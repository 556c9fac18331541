"""TODO torch."""
