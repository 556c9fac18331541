"""Pipeline policies: the order of passes, and the start of gradient all-reduces.

``policy`` is what they share, ``orders`` has the plain orders, the rest is a file a system.
"""
