"""Policies of data-parallel training: which gradients form a message, its start condition and priority.

``policy`` is what each answers; the other modules are a system each, with its theory and source at the head.
"""
