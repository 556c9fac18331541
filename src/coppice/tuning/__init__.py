"""Tuning the library that is installed: measure its algorithms, and have it take those that are faster beyond noise."""
