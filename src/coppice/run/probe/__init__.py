"""Measure the network between ranks, and derive a topology."""
