"""TODO two_sided."""
