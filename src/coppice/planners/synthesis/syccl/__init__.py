"""SyCCL (SIGCOMM 2025): sketches over the dimensions of a symmetric network, each subproblem solved once."""
