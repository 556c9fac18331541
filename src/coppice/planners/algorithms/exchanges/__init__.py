"""Algorithms in rounds of exchanges: recursive doubling and halving, Bruck, circulant graphs."""
