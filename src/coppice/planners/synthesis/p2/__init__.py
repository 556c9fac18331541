"""P2 (N. Xie et al., MLSys 2022): placements of parallel axes, and reduction programs along them."""
