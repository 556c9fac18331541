"""TACOS (MICRO 2024): greedy matching of links with chunks on the time-expanded network."""
