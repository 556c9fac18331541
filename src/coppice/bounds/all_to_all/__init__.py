"""The optimum of all-to-all: a maximum concurrent flow, its routes, and the lengths or the cut that prove it."""
