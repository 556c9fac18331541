"""Measured device tables: rates of matrix products, copies and attention."""
