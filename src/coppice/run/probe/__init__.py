"""Measuring the network between ranks, and the topology that follows."""
