"""Which algorithm RCCL picks, and why: the boards that it knows, and NCCL's cost model with constants of its own."""
