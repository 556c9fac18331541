"""P2 (N. Xie et al., MLSys 2022): placements of axes of parallelism, and programs that reduce along them."""
