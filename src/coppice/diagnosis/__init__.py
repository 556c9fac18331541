"""Diagnosis: which flows to measure, and which link, NIC, GPU, host or switch is slow by what was measured."""
