"""Tune the installed library: measure its algorithms, and select those that are significantly faster."""
