"""TODO flow."""
