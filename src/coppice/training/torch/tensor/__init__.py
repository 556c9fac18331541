"""Tensor parallelism in torch: collectives beside the products they depend on, by the policies of simulation."""
