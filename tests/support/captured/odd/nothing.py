"""Trains nothing."""
