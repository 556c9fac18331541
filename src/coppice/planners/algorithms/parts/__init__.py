"""Building blocks of algorithms: trees, rank orders, exchanges, moves and costs."""
