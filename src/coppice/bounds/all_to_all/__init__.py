"""Optimum of all-to-all: maximum concurrent flow, its routes, and the lengths or the cut that prove it."""
