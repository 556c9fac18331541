"""Scheduling policies: what may start when, in which order, split how.

``policy`` is what each answers, ``messages`` what those of data-parallel training decide about gradients, ``catalogue``
has all by name.
"""
