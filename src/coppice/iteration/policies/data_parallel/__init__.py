"""Policies of data-parallel training: which gradients are sent together, when, and before what.

``policy`` is what each answers; the other modules are a system each, with its theory and source at the head.
"""
