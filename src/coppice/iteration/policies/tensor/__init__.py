"""Policies inside a layer: how the collectives of tensor parallelism overlap with its products, and what is computed
again when.

``policy`` is what each answers, ``catalogue`` has them by name; every system is a short module with its theory.
"""
