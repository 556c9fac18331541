"""TODO forest."""
