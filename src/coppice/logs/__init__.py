"""TODO logs."""
