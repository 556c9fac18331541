"""Scheduling policies of communication and computation: start conditions, order, partitioning.

``policy`` is what each answers, ``messages`` what those of data-parallel training decide about gradients, ``catalogue``
has all by name.
"""
