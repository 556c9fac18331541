"""Policies: what may start when, in which order, cut how.

``policy`` is what each answers, ``catalogue`` has them by name.
"""
