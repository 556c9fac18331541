"""What algorithms are made of: trees, orders of ranks, exchanges, moves and their costs."""
