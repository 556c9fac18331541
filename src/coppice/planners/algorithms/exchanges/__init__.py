"""Exchange algorithms: recursive doubling and halving, Bruck, circulant graphs."""
