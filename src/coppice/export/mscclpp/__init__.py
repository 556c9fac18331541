"""Execution plans of MSCCL++: written and read."""
