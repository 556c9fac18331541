"""Rings and trees for RCCL as it is shipped."""
