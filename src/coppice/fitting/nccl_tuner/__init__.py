"""Timings of NCCL algorithms and tuner-table rules derived from them."""
