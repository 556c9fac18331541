"""Rank orders that keep groups close in the network."""
