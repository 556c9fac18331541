"""Bound on concurrent collectives of several groups on one network, with its proof."""
