"""Policies of pipelines: who runs which pass when, and when gradients of stages are summed.

``policy`` is what they share, ``orders`` has the plain orders, the rest is a file a system.
"""
