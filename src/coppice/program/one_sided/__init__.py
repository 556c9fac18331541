"""TODO one_sided."""
