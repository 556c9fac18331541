"""TODO ring."""
