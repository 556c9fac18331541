"""TODO rank_order."""
