"""Engines: execute per-rank programs over NumPy, MPI, shared memory and torch.distributed."""
