"""Measured devices: rates of matrix products, copies and attention as a table, and what an estimate reads from it."""
