"""TACOS (MICRO 2024): greedy matching of chunks to links on the time-expanded network."""
