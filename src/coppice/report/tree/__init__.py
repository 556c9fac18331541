"""Drawings of trees, and the choice of those that are worth one."""
