"""Tensor-parallel policies: overlap of a layer's collectives with its computation, and selective recomputation.

``policy`` is what each answers, ``catalogue`` has them by name; every system is a short module with its theory.
"""
