"""TODO topology."""
