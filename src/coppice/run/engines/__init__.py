"""Engines: what carries out the programs of ranks, over NumPy, MPI, shared memory and torch.distributed."""
