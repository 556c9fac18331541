"""TODO all_to_all."""
