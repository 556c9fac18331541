"""TODO direct."""
