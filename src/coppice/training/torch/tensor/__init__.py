"""Tensor parallelism in torch: overlap collectives with dependent matrix products, by simulated policies."""
