"""TODO composition."""
