"""TODO verification."""
