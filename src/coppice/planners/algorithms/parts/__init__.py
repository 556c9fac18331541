"""TODO parts."""
