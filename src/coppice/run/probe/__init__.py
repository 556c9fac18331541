"""TODO probe."""
