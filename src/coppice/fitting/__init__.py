"""TODO fitting."""
