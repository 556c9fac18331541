"""Algorithms along rings."""
