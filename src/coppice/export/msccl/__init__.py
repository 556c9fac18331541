"""MSCCL XML: written and read."""
