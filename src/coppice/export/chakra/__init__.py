"""Chakra execution traces: written for ASTRA-sim and other simulators."""
