"""Algorithms along trees: broadcast, reduce and all-reduce, in switches as well."""
