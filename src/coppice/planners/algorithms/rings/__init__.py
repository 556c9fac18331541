"""TODO rings."""
