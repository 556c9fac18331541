"""Policies inside a layer: what overlaps with the collectives of tensor parallelism, and what is computed again when.

``policy`` is what each answers, ``catalogue`` has them by name; every system is a short module with its theory.
"""
