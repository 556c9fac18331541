"""TODO simulate."""
