"""The search for what is fastest at one size."""
