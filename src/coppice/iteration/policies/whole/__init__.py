"""Whole-step policies: partition, route and order collectives together with the computation around them."""
