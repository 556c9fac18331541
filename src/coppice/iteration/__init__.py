"""Simulate training iterations: tasks on streams and links, the policies that order them, and the resulting time.

``tasks`` and ``running`` are the graph and its simulation, ``layers`` the workload of a model whose gradients are
summed over workers, ``policies`` what may start when, in which order, cut how; ``pipeline`` orders of stages and
micro-batches.
"""
